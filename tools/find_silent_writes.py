"""Finds operators that write an argument without saying so in their schema, by running them on read-only memory.

    python tools/find_silent_writes.py [--reviewed-too] [PATTERN ...]    (torch's database needs the package expecttest)

torch's own databases of operators, modules and optimizers give samples; the patterns choose them by name, as in a
shell. Every operator that a sample comes down to, in backward too, is run once more for each argument that it does not
say it writes, with that argument's memory mapped read-only: an operator that writes there, be it the bytes that are
there already, kills the child process in which it runs, and is listed. What the reviewed list has
(umadvise/recording/operators.py, SILENT_WRITES) is left out without --reviewed-too. Only CPU kernels for float32 are
seen, and only those of strided tensors. The exit status is 3 where something was found.
"""

import signal
import sys
import warnings
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import chain, islice
from typing import Any

import torch
from harness import command_line
from op_trial.cases import attempt
from op_trial.looking import Arguments, Looking, value_of, with_value
from op_trial.subjects import OpSubject, subjects
from read_only import Board, can_be_protected, read_only, signal_of_child
from torch.utils._pytree import tree_leaves

from umadvise.recording.operators import SILENT_WRITES, OpKind, TensorArgument, derive
from umadvise.records.trace import Access

MOST_SAMPLES = 8
Write = tuple[str, str]
"""Operator with overload, and argument."""


def run_subject(subject: OpSubject) -> None:
    """Calls, in place and with `out=`, forward and backward; a sample need not be valid here."""
    for case in chain.from_iterable(islice(subject.samples(), MOST_SAMPLES if subject.database == "op" else None)):
        case.forward()
        case.backward()
        if case.follow and case.is_whole and (follower := case.follow(case.result)) is not None:
            follower.forward()


class SilentWrites:
    """Runs operators with read-only arguments, and says on the board what it is about to do.

    Args:
        board: what names the operator and argument of the trial that runs.
        known: writes that need no trial.
        reviewed: whether the reviewed list counts as announced.
    """

    def __init__(self, board: Board, known: set[Write], reviewed: bool) -> None:
        self._board, self._known, self._reviewed = board, known, reviewed

    def look(self, func: Any, arguments: Arguments) -> None:
        """Tries each argument that the operator does not say it writes."""
        info = derive(func)
        if info.kind is not OpKind.OPERATION:
            return
        for argument in info.arguments:
            write = (info.name, argument.name)
            if write not in self._known and not self._is_announced(func, argument, arguments):
                self._board.write(" ".join(write))
                _run_protected(func, argument, arguments)
                self._board.write("")

    def _is_announced(self, func: Any, argument: TensorArgument, arguments: Arguments) -> bool:
        if func._schema.arguments[argument.index].alias_info is not None:
            return True
        if not self._reviewed or not argument.flags & Access.WRITE:
            return False
        if not argument.only_in_training:
            return True
        names = [each.name for each in func._schema.arguments]
        given = dict(zip(names, arguments[0], strict=False)) | arguments[1]
        return bool(given.get("training", given.get("train", True)))


def _run_protected(func: Any, argument: TensorArgument, arguments: Arguments) -> None:
    value = value_of(arguments, argument.index, argument.name)
    if any(map(can_be_protected, tree_leaves(value))):
        args, kwargs = with_value(arguments, argument.index, argument.name, read_only(value))
        attempt(lambda: func(*args, **kwargs))


def silent_writes(subject: OpSubject, known: set[Write], *, reviewed: bool = True) -> Iterator[Write]:
    """What it writes silently besides what is known, which grows by it. Where it dies otherwise, an empty write.

    Args:
        subject: an operator, module or optimizer of torch's databases.
        known: writes that are not looked for again.
        reviewed: whether the reviewed list counts as announced.
    """
    board = Board()

    def run() -> None:
        warnings.simplefilter("ignore")
        with Looking(SilentWrites(board, known, reviewed).look):
            run_subject(subject)

    while (killed_by := signal_of_child(run)) != 0:
        operator, _, argument = board.read().partition(" ")
        if killed_by != signal.SIGSEGV or not operator:
            yield "", f"{subject.name_there}: ended by {signal.Signals(killed_by).name} in {operator or 'no trial'}"
            return
        known.add((operator, argument))
        yield operator, argument


def main(words: list[str] | None = None) -> int:
    """Prints what it finds."""
    parser = command_line(__doc__)
    parser.add_argument("--reviewed-too", action="store_true", help="list what has been reviewed as well")
    parser.add_argument("patterns", nargs="*", default=["*"], metavar="PATTERN", help='such as "nn.functional.*"')
    given = parser.parse_args(words)
    torch.set_num_threads(1)  # a forked child has no others
    warnings.simplefilter("ignore")
    known: set[Write] = set()
    count = 0
    for subject in subjects(["float32"], gaps=False):
        if subject.database == "foreach" or not any(fnmatchcase(subject.name_there, each) for each in given.patterns):
            continue
        count += 1
        for operator, argument in silent_writes(subject, known, reviewed=not given.reviewed_too):
            print(f"{operator}: {argument}  # {subject.name_there}" if operator else argument, flush=True)
    print(
        f"{count} subjects, {len(known)} silent writes; reviewed: {sum(map(len, SILENT_WRITES.values()))}",
        file=sys.stderr,
    )
    return 3 if known else 0


if __name__ == "__main__":
    sys.exit(main())
