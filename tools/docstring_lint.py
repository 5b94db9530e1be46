"""Finds descriptions in public docstrings that cannot be read alone, and arguments of classes that have none.

    python tools/docstring_lint.py [FILE ...]

A description of an argument or attribute is a noun phrase of at least three words: it begins with no preposition, no
"that", no "likewise", and does not send its reader elsewhere. Missing arguments of functions are ruff's part (D417).
Exit codes: 0 where there is nothing, 3 where there is.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from harness import command_line

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("umadvise", "tools", "examples")
LEAST_WORDS = 3
HEADLESS = re.compile(
    r"(?:after|as|at|before|behind|beside|between|by|for|from|in|into|is|likewise|of|on|once|same|see|that|to|under|until|"
    r"when|where|which|whose|with|within|without)\b|the same\.",
    re.IGNORECASE,
)
ENTRY = re.compile(r"    \*{0,2}(\w+)(?: \(.+?\))?: (.*)")
Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def entries(docstring: str, *sections: str) -> dict[str, str]:
    """What some sections of a docstring say, by name."""
    found: dict[str, str] = {}
    section = name = ""
    for line in docstring.splitlines():
        if heading := re.fullmatch(r"(\w+):", line):
            section = heading[1]
        elif section in sections and (entry := ENTRY.fullmatch(line)):
            name = entry[1]
            found[name] = entry[2]
        elif section in sections and name and line.startswith(" " * 8):
            found[name] += f" {line.strip()}"
    return found


def public(tree: ast.AST) -> Iterator[Documented]:
    """The classes and functions of a module, and the methods of those classes, that have public names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Documented) and not node.name.startswith("_"):
            yield node
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public(node)
            yield from (each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__")


def arguments(node: ast.FunctionDef) -> list[str]:
    """Names of the arguments that a caller gives."""
    given = node.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return [each.arg for each in every if each is not None and each.arg != "self" and not each.arg.startswith("_")]


def findings(path: Path) -> Iterator[str]:
    """A line for each description that is wrong or missing."""
    for node in public(ast.parse(path.read_text())):
        docstring = ast.get_docstring(node) or ""
        for name, said in entries(docstring, "Args", "Attributes").items():
            if len(said.split()) < LEAST_WORDS or HEADLESS.match(said):
                yield f"{path}:{node.lineno}: {node.name}: {name}: {said}"
        described = entries(docstring, "Args")
        makers = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.FunctionDef)]
        for maker in makers if isinstance(node, ast.ClassDef) and described else ():
            if maker.name == "__init__":
                missing = [name for name in arguments(maker) if name not in described]
                yield from (f"{path}:{node.lineno}: {node.name}: {name} has no description" for name in missing)


def main(words: list[str] | None = None) -> int:
    """Prints what is wrong, a line each."""
    parser = command_line(__doc__)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="look at these alone")
    files = parser.parse_args(words).files or [
        path for source in SOURCES for path in sorted((ROOT / source).rglob("*.py"))
    ]
    wrong = [line.removeprefix(f"{ROOT}/") for path in files for line in findings(path)]
    for line in wrong:
        print(line)
    return 3 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
