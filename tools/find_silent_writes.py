"""Finds operators that write an argument without saying so in their schema, by running them on read-only memory.

    python tools/find_silent_writes.py [--reviewed-too] [PATTERN ...]    (torch's database needs the package expecttest)

torch's own databases of operators, modules and optimizers give samples; the patterns choose them by name, as in a
shell. Every operator that a sample comes down to, in backward too, is run once more for each argument that it does not
say it writes, with that argument's memory mapped read-only: an operator that writes there, be it the bytes that are
there already, kills the child process in which it runs, and is listed. What the reviewed list has
(umadvise/_hooks/operator_lists.h, kSilentWrites) is left out without --reviewed-too. Only CPU kernels for float32 are
seen, and only those of strided tensors. The exit status is 3 where something was found.
"""

import ctypes
import mmap
import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from itertools import chain, islice
from multiprocessing.sharedctypes import RawArray
from typing import Any

import torch
from harness import command_line
from op_trial.cases import attempt
from op_trial.looking import Arguments, Looking, value_of, with_value
from op_trial.subjects import OpSubject, subjects
from torch.utils._pytree import tree_leaves, tree_map

from umadvise.recording.operators import SILENT_WRITES, OpKind, TensorArgument, derive
from umadvise.records.trace import Access

MOST_SAMPLES = 8
_BOARD_BYTES = 4096
_PROT_READ = 1
MOST_SECONDS = 120
"""A child that takes longer is given up."""
Write = tuple[str, str]
"""Operator with overload, and argument."""


def read_only(value: Any) -> Any:
    """Equal tensors in memory that cannot be written, for every strided tensor in a value."""
    return tree_map(lambda leaf: _protected(leaf) if can_be_protected(leaf) else leaf, value)


def can_be_protected(value: Any) -> bool:
    """Whether it is a tensor with plain bytes of its own."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
        return False
    plain = value.device.type == "cpu" and not value.is_quantized and not value.is_conj() and not value.is_neg()
    return plain and value.numel() > 0


def _protected(tensor: torch.Tensor) -> torch.Tensor:
    source = tensor.detach().untyped_storage()
    memory = mmap.mmap(-1, source.nbytes())
    storage = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    storage.copy_(source)
    copied = torch.empty(0, dtype=tensor.dtype).set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
    address, size = ctypes.c_void_p(storage.data_ptr()), ctypes.c_size_t(source.nbytes())
    if ctypes.CDLL(None, use_errno=True).mprotect(address, size, _PROT_READ) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    return copied


def signal_of_child(work: Callable[[], None]) -> int:
    """Runs something in a forked child. Returns the signal that killed it, 0 where it ended by itself."""
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        signal.alarm(MOST_SECONDS)
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def run_subject(subject: OpSubject) -> None:
    """Calls, in place and with `out=`, forward and backward; a sample need not be valid here."""
    for case in chain.from_iterable(islice(subject.samples(), MOST_SAMPLES if subject.database == "op" else None)):
        case.forward()
        case.backward()
        if case.follow and case.is_whole and (follower := case.follow(case.result)) is not None:
            follower.forward()


class SilentWrites:
    """Runs operators with read-only arguments, and says on a board what it is about to do.

    Args:
        board: memory that a parent process sees too, for operator and argument of the trial that runs.
        known: writes that need no trial.
        reviewed: whether the reviewed list counts as announced.
    """

    def __init__(self, board: Any, known: set[Write], reviewed: bool) -> None:
        self._board, self._known, self._reviewed = board, known, reviewed

    def look(self, func: Any, arguments: Arguments) -> None:
        """Tries each argument that the operator does not say it writes."""
        info = derive(func)
        if info.kind is not OpKind.OPERATION:
            return
        for argument in info.arguments:
            write = (info.name, argument.name)
            if write not in self._known and not self._is_announced(func, argument, arguments):
                self._board.value = " ".join(write).encode()
                _run_protected(func, argument, arguments)
                self._board.value = b""

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
    board = RawArray("c", _BOARD_BYTES)

    def run() -> None:
        warnings.simplefilter("ignore")
        with Looking(SilentWrites(board, known, reviewed).look):
            run_subject(subject)

    while (killed_by := signal_of_child(run)) != 0:
        operator, _, argument = board.value.decode().partition(" ")
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
