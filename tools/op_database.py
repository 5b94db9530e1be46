"""Runs torch's databases of operators where everything leaves the device between forward, backward and comparison.

    python tools/op_database.py [--dtype float32 ...] [--samples N] [--part K/N] [--log FILE] [PATTERN ...]

Operators, operators on lists of tensors, modules and optimizers, with torch's own samples: called, in place, with
`out=`, with gaps between the elements, and backward. Each runs twice in plain torch and once in a session on an
emulated device which every tensor leaves, the smallest included. Before each part all chunks are
taken and overwritten with garbage, which is checked. What is left in the end is compared bit by bit; what plain torch
does not repeat itself, as it never wrote it, is counted and not compared.

The patterns choose subjects ("op add float32", "module LSTM bfloat16") as in a shell. Children run them, so that one
that dies takes no other with it. What `--log` names has a line for each; those that are there are not run again. The
exit status is 3 where something differs, died or failed.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any

from harness import command_line
from op_trial.children import answers
from op_trial.figures import figures, troubles


def chosen(given: argparse.Namespace) -> list[str]:
    """Names of the subjects to be run, in order."""
    from op_trial.subjects import subjects

    names = [subject.name for subject in subjects()]
    names = [name for name in names if not given.dtype or name.rpartition(" ")[2] in given.dtype]
    patterns = given.patterns or ["*"]
    names = [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
    first, _, of = (given.part or "1/1").partition("/")
    return list(islice(names, int(first) - 1, None, int(of)))


def logged(path: Path | None) -> list[dict[str, Any]]:
    """What an earlier run has written down."""
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def written(rows: Iterable[dict[str, Any]], path: Path | None) -> Iterator[dict[str, Any]]:
    """The rows, each written down as it comes."""
    for row in rows:
        if path is not None:
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        for trouble in troubles(row):
            print(trouble, flush=True)
        yield row


def main(words: list[str] | None = None) -> int:
    """Prints what is wrong, and figures."""
    parser = command_line(__doc__)
    parser.add_argument(
        "--dtype", action="append", help="of float32, complex64, bfloat16, int64; several; default: all"
    )
    parser.add_argument("--samples", type=int, default=0, metavar="N", help="the first N of each subject; default: all")
    parser.add_argument("--part", metavar="K/N", help="every N-th subject, beginning with the K-th")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--log", type=Path, metavar="FILE", help="where each subject's figures are kept")
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help='such as "op linalg.*"')
    given = parser.parse_args(words)
    names = chosen(given)
    before = {row["subject"]: row for row in logged(given.log)}
    waiting = [name for name in names if name not in before]
    found = written(answers(waiting, given.samples, given.processes), given.log)
    rows = [before[name] for name in names if name in before] + list(found)
    print(figures(rows))
    return 3 if any(troubles(row) for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
