"""Finds comments without a subject, and words for which the field has better ones.

    python tools/comment_lint.py [FILE ...]

No sentence of a block comment opens with a word of OPENINGS: it would have no subject. No comment has a word of
`comment_words.txt`, which says what to write instead, and which phrases are exceptions. Code does not count:
`backticks`, calls() and qualified::names. Exit codes: 0 where there is nothing, 3 where there is.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from harness import command_line

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("csrc/engine", "csrc/memory", "umadvise/_hooks")
"""Every file in these folders, or below them, is checked."""
OPENINGS = re.compile(
    r"(?:anybody|by|likewise|none|nobody|of|one (?:that|which|of which)|somebody|that|those (?:of|that|which)|"
    r"what|which|whoever|whom?|whose)\b",
    re.IGNORECASE,
)
WORDS = Path(__file__).parent / "comment_words.txt"
SUFFIXES = (".cpp", ".h", ".py")
RULE = re.compile(r"-{4}.*-{4}")
"""A line between the parts of a file."""


def rejected_words(text: str) -> tuple[dict[re.Pattern[str], str], list[str]]:
    """Returns what to write instead of each pattern, and the phrases in which the patterns are right."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pairs = [line.split(" -> ") for line in lines if not line.startswith("! ")]
    words = {re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE): instead for pattern, instead in pairs}
    return words, [line.removeprefix("! ") for line in lines if line.startswith("! ")]


def comments(text: str, mark: str) -> Iterator[tuple[int, bool, str]]:
    """Yields each comment's first line, whether it has lines of its own, and its text; blocks end at empty lines."""
    block: list[str] = []
    start = 0
    for number, line in enumerate([*text.splitlines(), ""], 1):
        code, found, said = re.sub(r'"(?:\\.|[^"\\])*"', "", line).partition(mark)
        said = said.strip()
        if found and not code.strip() and said and not RULE.match(said) and not re.match(r"- |\d+\. ", said):
            start = start if block else number
            block.append(said)
            continue
        if block:
            yield start, True, " ".join(block)
            block = []
        if found and not code.strip() and re.match(r"- |\d+\. ", said):
            start, block = number, [said]
        elif found and code.strip() and said:
            yield number, False, said


def findings(path: Path, words: dict[re.Pattern[str], str], exceptions: list[str]) -> Iterator[str]:
    """Yields a line for each sentence or word that is wrong."""
    for number, is_block, text in comments(path.read_text(), "#" if path.suffix == ".py" else "//"):
        prose = re.sub(r"`[^`]*`|[\w:]+\(\)|\w+::[\w:]+", "`", text)
        sentences = re.split(r"(?<=[.?!]) +", re.sub(r"^(?:- |\d+\. )", "", prose)) if is_block else []
        for sentence in sentences:
            if opening := OPENINGS.match(sentence):
                yield f"{path}:{number}: a sentence opens with '{opening[0]}', without a subject: {sentence}"
        for phrase in exceptions:
            prose = re.sub(rf"\b{re.escape(phrase)}\b", "`", prose, flags=re.IGNORECASE)
        for pattern, instead in words.items():
            if found := pattern.search(prose):
                yield f"{path}:{number}: '{found[0]}': {instead}: {text}"


def main(arguments: list[str] | None = None) -> int:
    """Prints what is wrong, a line each."""
    parser = command_line(__doc__)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="look at these alone")
    files = parser.parse_args(arguments).files or [
        path
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".cpp", ".h", ".py")
    ]
    words, exceptions = rejected_words(WORDS.read_text())
    wrong = [line.removeprefix(f"{ROOT}/") for path in files for line in findings(path, words, exceptions)]
    for line in wrong:
        print(line)
    return 3 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
