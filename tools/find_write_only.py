"""Finds operators that overwrite every byte of an argument before they read any, by running them.

    python tools/find_write_only.py [WORD ...]      (torch's database needs the package expecttest)

torch's own database of operators gives sample inputs for most of them; the words choose operators by name. Each call
that an operator comes down to, and that writes an argument (`out=`, or in place), is run again on fresh copies of its
arguments, with two different fillings of what it writes. An argument whose bytes are the same afterwards, for both
fillings and every sample, is overwritten whole. Random operators run from the same seed. What is printed is a
suggestion: umadvise/recording/dry/write_only.py is reviewed by hand.
"""

import sys
import warnings
from collections import Counter
from itertools import chain, islice
from typing import Any

import torch
from op_trial.cases import attempt, seed_all
from op_trial.looking import Arguments, Looking, value_of
from op_trial.subjects import OpSubject, subjects
from torch.utils._pytree import tree_leaves, tree_map

from umadvise.recording.operators import CREATIONS, full_name

MOST_SAMPLES = 12
_FILLINGS = (0x00, 0x5A)
_NOT_RUN = {"aten::resize_", "aten::set_", "aten::resize_as_"} | CREATIONS


class Evidence:
    """How often each written argument of each operator was seen overwritten, and how often not.

    Attributes:
        whole: calls that overwrote all of the argument, by operator and argument.
        partial: calls that did not, by operator and argument.
    """

    def __init__(self) -> None:
        self.whole: Counter[tuple[str, str]] = Counter()
        self.partial: Counter[tuple[str, str]] = Counter()

    def overwritten(self) -> dict[str, tuple[str, ...]]:
        """By operator, the arguments that were overwritten in every call."""
        found: dict[str, tuple[str, ...]] = {}
        for name, argument in sorted(self.whole.keys() - self.partial.keys()):
            found[name] = (*found.get(name, ()), argument)
        return found

    def look(self, func: torch._ops.OpOverload, arguments: Arguments) -> None:
        """Runs one call with each filling of each written argument."""
        if func._schema.name in _NOT_RUN or torch.Tag.inplace_view in func.tags:
            return
        for index, name in written_arguments(func):
            value = value_of(arguments, index, name)
            tensors = [each for each in tree_leaves(value) if isinstance(each, torch.Tensor)]
            if not tensors or not all(_can_be_filled(each) for each in tensors):
                continue
            if (whole := _overwrites(func, arguments, index, name)) is not None:
                (self.whole if whole else self.partial)[full_name(func._schema), name] += 1


def written_arguments(func: torch._ops.OpOverload) -> list[tuple[int, str]]:
    """Places and names of the tensors that an operator's schema says it writes."""
    return [
        (index, argument.name)
        for index, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write and "Tensor" in str(argument.type)
    ]


def _can_be_filled(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.numel() > 0 and tensor.is_contiguous() and not tensor.is_quantized


def _overwrites(func: torch._ops.OpOverload, arguments: Arguments, index: int, name: str) -> bool | None:
    results = []
    for filling in _FILLINGS:
        args, kwargs = fresh = tree_map(_copy, arguments)
        target = tree_leaves(value_of(fresh, index, name))
        before = [each.untyped_storage().nbytes() for each in target]
        for each in target:
            _fill(each, filling)
        seed_all()
        try:
            func(*args, **kwargs)
        except Exception:  # the filling may be no valid value
            return None
        if before != [each.untyped_storage().nbytes() for each in target]:
            return None  # it was resized: other memory
        results.append([_bytes(each) for each in target])
    return all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _fill(tensor: torch.Tensor, filling: int) -> None:
    if tensor.dtype is torch.bool:
        tensor.fill_(filling != 0)
    else:
        _bytes(tensor).fill_(filling)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)  # contiguous, whatever strides of 1 element say


def run_subject(subject: OpSubject) -> None:
    """Calls with its samples: as they are, in place, and with `out=`."""
    for case in chain.from_iterable(islice(subject.samples(), MOST_SAMPLES)):
        result = attempt(case.call)
        if case.follow and isinstance(result, torch.Tensor) and (into := case.follow(result)) is not None:
            into.given[2]["out"] = torch.empty_like(result)  # not with gaps: only what has none can be filled
            attempt(into.call)


def main(words: list[str]) -> int:
    """Prints the table."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    evidence = Evidence()
    for subject in subjects(["float32"], gaps=False):
        named = not words or any(word in subject.name_there for word in words)
        if subject.database not in ("op", "foreach") or not named:
            continue
        try:
            with Looking(evidence.look), torch.no_grad():
                run_subject(subject)
        except Exception as error:  # its samples need what this machine lacks
            print(f"{subject.name_there}: {type(error).__name__}", file=sys.stderr)
    found = evidence.overwritten()
    for name, arguments in found.items():
        calls = sum(evidence.whole[name, argument] for argument in arguments)
        print(f'    "{name}": {arguments!r},  # {calls} calls')
    print(f"{len(found)} operators overwrite, {len(evidence.partial)} arguments do not", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
