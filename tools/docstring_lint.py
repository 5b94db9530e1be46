"""Finds descriptions in public docstrings that cannot be read alone, and arguments of classes that have none.

    python tools/docstring_lint.py [--list] [--write] [FILE ...]

A description of an argument or attribute is a noun phrase of at least three words: it begins with no preposition, no
"that", no "likewise", and does not send its reader elsewhere. Missing arguments of functions are ruff's part (D417).

tools/docstring_debts.json says how many findings each room may have still. More than that fails, and so does less: the
list only shrinks, by --write, which never raises a number. Exit codes: 0 as the list says, 3 not so.
"""

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from harness import command_line

ROOT = Path(__file__).resolve().parents[1]
DEBTS = Path(__file__).with_name("docstring_debts.json")
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


def room(path: Path) -> str:
    """The folder that answers for a file: umadvise/planners, tools."""
    parts = path.parent.parts
    return "/".join(parts[:2] if parts[0] == "umadvise" else parts[:1])


def main(words: list[str] | None = None) -> int:
    """Prints the rooms that differ from the list."""
    parser = command_line(__doc__)
    parser.add_argument("--list", action="store_true", help="print every finding")
    parser.add_argument("--write", action="store_true", help="lower the numbers of the list")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="list the findings of these alone")
    options = parser.parse_args(words)
    if options.files:
        print(*(line for path in options.files for line in findings(path)), sep="\n")
        return 0
    found: Counter[str] = Counter()
    for source in SOURCES:
        for path in sorted((ROOT / source).rglob("*.py")):
            for line in findings(path):
                found[room(path.relative_to(ROOT))] += 1
                if options.list:
                    print(line.removeprefix(f"{ROOT}/"))
    allowed = json.loads(DEBTS.read_text()) if DEBTS.exists() else dict(found)
    if options.write:
        lowered = {name: min(count, found[name]) for name, count in sorted(allowed.items())}
        DEBTS.write_text(json.dumps({name: count for name, count in lowered.items() if count}, indent=1) + "\n")
        return 0
    wrong = [name for name in sorted(found.keys() | allowed.keys()) if found[name] != allowed.get(name, 0)]
    for name in wrong:
        remedy = "mend them (--list names them)" if found[name] > allowed.get(name, 0) else "write it down with --write"
        print(f"{name}: {found[name]} descriptions cannot be read alone, {allowed.get(name, 0)} may: {remedy}")
    return 3 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
