"""Finds operators that write an argument without saying so in their schema, by running them on read-only memory.

    python tools/find_silent_writes.py [--reviewed-too] [PATTERN ...]    (torch's database needs the package expecttest)

torch's own databases of operators, modules and optimizers give samples; the patterns choose them by name, as in a
shell. Every operator that a sample comes down to, in backward too, is run once more for each argument that it does not
say it writes, with that argument's memory mapped read-only: an operator that writes there, be it the bytes that are
there already, kills the child process in which it runs, and is listed. What the reviewed list has
(umadvise/recording/operators.py, SILENT_WRITES) is left out without --reviewed-too. Only CPU kernels for float32 are
seen, and only those of strided tensors. The exit status is 3 where something was found.
"""

import argparse
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

import torch
from read_only import Board, can_be_protected, read_only, signal_of_child
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import optim_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from umadvise.recording.operators import SILENT_WRITES, Kind, TensorArgument, derive
from umadvise.records.trace import Access

MOST_SAMPLES = 8
_SEED = 2021
Write = tuple[str, str]
"""Operator with overload, and argument."""


@dataclass(frozen=True)
class Subject:
    """Something to be run."""

    name: str
    run: Callable[[], None]


# ---- what is run ---------------------------------------------------------------------------------------------------


def subjects() -> Iterator[Subject]:
    """Every operator, module and optimizer of torch's databases, by name."""
    for operator in op_db:
        if torch.float32 in operator.supported_dtypes("cpu"):
            name = ".".join(filter(None, (operator.name, operator.variant_test_name)))
            yield Subject(name, lambda operator=operator: _run_operator(operator))  # type: ignore[misc]
    for module in module_db:
        yield Subject(module.name, lambda module=module: _run_module(module))  # type: ignore[misc]
    for optimizer in optim_db:
        name = str(optimizer.optim_cls.__name__)  # type: ignore[attr-defined]
        yield Subject(name, lambda optimizer=optimizer: _run_optimizer(optimizer))  # type: ignore[misc]


def _attempt(work: Callable[[], Any]) -> Any:
    """Its result; None where it refuses: a sample need not be valid here."""
    torch.manual_seed(_SEED)
    try:
        return work()
    except Exception:
        return None


def _backward(result: Any) -> None:
    leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if leaves:
        _attempt(lambda: torch.autograd.backward(leaves, [torch.ones_like(leaf) for leaf in leaves]))


def _run_operator(operator: Any) -> None:
    gradients = operator.supports_autograd
    for sample in islice(operator.sample_inputs("cpu", torch.float32, requires_grad=gradients), MOST_SAMPLES):
        inputs, args, kwargs = sample.input, sample.args, sample.kwargs
        _backward(_attempt(lambda: operator.op(inputs, *args, **kwargs)))  # noqa: B023  # called at once
        if operator.inplace_variant is not None and isinstance(inputs, torch.Tensor):
            _attempt(lambda: operator.inplace_variant(inputs.detach().clone(), *args, **kwargs))  # noqa: B023


def _run_module(module: Any) -> None:
    for training in (True, False):
        found = module.module_inputs_func(module, "cpu", torch.float32, requires_grad=True, training=training)
        for sample in islice(found, MOST_SAMPLES):
            made, given = sample.constructor_input, sample.forward_input
            built = _attempt(lambda: module.module_cls(*made.args, **made.kwargs))  # noqa: B023
            if built is not None and given is not None:
                built.train(training)
                _backward(_attempt(lambda: built(*given.args, **given.kwargs)))  # noqa: B023


def _run_optimizer(optimizer: Any) -> None:
    for sample in optimizer.optim_inputs_func("cpu"):
        for implementation in ({"foreach": False}, {"foreach": True}, {"fused": True}):
            _attempt(lambda: _some_steps(optimizer.optim_cls, sample.kwargs | implementation))  # noqa: B023


def _some_steps(kind: Any, options: dict[str, Any]) -> None:
    parameters = [torch.nn.Parameter(torch.randn(5, 3)), torch.nn.Parameter(torch.randn(3, 4))]
    optimizer = kind(parameters, **options)
    for _ in range(2):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer.step(lambda: parameters[0].sum())


# ---- how it is found -----------------------------------------------------------------------------------------------


class Trial(TorchDispatchMode):
    """Runs every operator on read-only arguments first, and says on the board what it is about to do."""

    def __init__(self, board: Board, known: set[Write], reviewed: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._board, self._known, self._reviewed = board, known, reviewed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Tries it, then runs it."""
        values, kwargs = list(args), dict(kwargs or {})
        info = derive(func)
        if info.kind is Kind.OPERATION:
            for argument in info.arguments:
                write = (info.name, argument.name)
                if write not in self._known and not self._is_announced(func, argument, values, kwargs):
                    self._board.write(" ".join(write))
                    _run_protected(func, argument, values, kwargs)
                    self._board.write("")
        return func(*args, **kwargs)

    def _is_announced(self, func: Any, argument: TensorArgument, values: list[Any], kwargs: dict[str, Any]) -> bool:
        if func._schema.arguments[argument.index].alias_info is not None:
            return True
        if not self._reviewed or not argument.flags & Access.WRITE:
            return False
        if not argument.only_in_training:
            return True
        names = [each.name for each in func._schema.arguments]
        given = dict(zip(names, values, strict=False)) | kwargs
        return bool(given.get("training", given.get("train", True)))


def _run_protected(func: Any, argument: TensorArgument, values: list[Any], kwargs: dict[str, Any]) -> None:
    place = argument.index if argument.index < len(values) else argument.name
    value = values[place] if isinstance(place, int) else kwargs.get(place)
    if not any(map(can_be_protected, tree_leaves(value))):
        return
    protected = read_only(value)
    if isinstance(place, int):
        values = [protected if index == place else each for index, each in enumerate(values)]
    else:
        kwargs = kwargs | {place: protected}
    _attempt(lambda: func(*values, **kwargs))


def silent_writes(subject: Subject, known: set[Write], *, reviewed: bool = True) -> Iterator[Write]:
    """What it writes silently besides what is known, which grows by it. Where it dies otherwise, an empty write.

    Args:
        subject: what is run.
        known: writes not to look for again.
        reviewed: whether the reviewed list counts as announced.
    """
    board = Board()

    def run() -> None:
        warnings.simplefilter("ignore")
        with Trial(board, known, reviewed):
            subject.run()

    while (killed_by := signal_of_child(run)) != 0:
        operator, _, argument = board.read().partition(" ")
        if killed_by != signal.SIGSEGV or not operator:
            yield "", f"{subject.name}: ended by {signal.Signals(killed_by).name} in {operator or 'no trial'}"
            return
        known.add((operator, argument))
        yield operator, argument


def main(words: list[str] | None = None) -> int:
    """Prints what it finds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reviewed-too", action="store_true", help="list what has been reviewed as well")
    parser.add_argument("patterns", nargs="*", default=["*"], metavar="PATTERN", help='such as "nn.functional.*"')
    given = parser.parse_args(words)
    torch.set_num_threads(1)  # a forked child has no others
    warnings.simplefilter("ignore")
    known: set[Write] = set()
    count = 0
    for subject in subjects():
        if not any(fnmatchcase(subject.name, pattern) for pattern in given.patterns):
            continue
        count += 1
        for operator, argument in silent_writes(subject, known, reviewed=not given.reviewed_too):
            print(f"{operator}: {argument}  # {subject.name}" if operator else argument, flush=True)
    print(
        f"{count} subjects, {len(known)} silent writes; reviewed: {sum(map(len, SILENT_WRITES.values()))}",
        file=sys.stderr,
    )
    return 3 if known else 0


if __name__ == "__main__":
    sys.exit(main())
