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
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from umadvise.recording.operators import CREATIONS, full_name

MOST_SAMPLES = 12
_FILLINGS = (0x00, 0x5A)
_SEED = 2021
_NOT_RUN = {"aten::resize_", "aten::set_", "aten::resize_as_"} | CREATIONS


class Evidence:
    """For each written argument of each operator: how often it was seen overwritten, and how often not."""

    def __init__(self) -> None:
        self.whole: dict[tuple[str, str], int] = {}
        self.partial: dict[tuple[str, str], int] = {}

    def add(self, name: str, argument: str, *, whole: bool) -> None:
        """One more call."""
        table = self.whole if whole else self.partial
        table[name, argument] = table.get((name, argument), 0) + 1

    def overwritten(self) -> dict[str, tuple[str, ...]]:
        """By operator, the arguments that were overwritten in every call."""
        found: dict[str, list[str]] = {}
        for name, argument in sorted(self.whole):
            if (name, argument) not in self.partial:
                found.setdefault(name, []).append(argument)
        return {name: tuple(arguments) for name, arguments in found.items()}


class Trial(TorchDispatchMode):
    """Tries every op that writes one of its arguments."""

    def __init__(self, evidence: Evidence) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._evidence = evidence

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Tries it, then runs it."""
        kwargs = kwargs or {}
        try_call(func, args, kwargs, self._evidence)
        return func(*args, **kwargs)


def written_arguments(func: torch._ops.OpOverload) -> list[tuple[int, str]]:
    """Places and names of the tensors that an operator's schema says it writes."""
    return [
        (index, argument.name)
        for index, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write and "Tensor" in str(argument.type)
    ]


def try_call(func: torch._ops.OpOverload, args: Any, kwargs: Any, evidence: Evidence) -> None:
    """Runs one call with each filling of each written argument."""
    if func._schema.name in _NOT_RUN or torch.Tag.inplace_view in func.tags:
        return
    for index, name in written_arguments(func):
        value = args[index] if index < len(args) else kwargs.get(name)
        tensors = [each for each in tree_leaves(value) if isinstance(each, torch.Tensor)]
        if not tensors or not all(_can_be_filled(each) for each in tensors):
            continue
        whole = _overwrites(func, args, kwargs, index, name)
        if whole is not None:
            evidence.add(full_name(func._schema), name, whole=whole)


def _can_be_filled(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.numel() > 0 and tensor.is_contiguous() and not tensor.is_quantized


def _overwrites(func: torch._ops.OpOverload, args: Any, kwargs: Any, index: int, name: str) -> bool | None:
    results = []
    for filling in _FILLINGS:
        fresh_args, fresh_kwargs = tree_map(_copy, (list(args), dict(kwargs)))
        target = fresh_args[index] if index < len(fresh_args) else fresh_kwargs[name]
        before = [each.untyped_storage().nbytes() for each in tree_leaves(target)]
        for each in tree_leaves(target):
            _fill(each, filling)
        torch.manual_seed(_SEED)
        try:
            func(*fresh_args, **fresh_kwargs)
        except Exception:  # the filling may be no valid value
            return None
        if before != [each.untyped_storage().nbytes() for each in tree_leaves(target)]:
            return None  # it was resized: other memory
        results.append([_bytes(each) for each in tree_leaves(target)])
    return all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _fill(tensor: torch.Tensor, filling: int) -> None:
    if tensor.dtype is torch.bool:
        tensor.fill_(filling != 0)
    else:
        tensor.reshape(-1).view(torch.uint8).fill_(filling)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def try_operator(operator: Any) -> None:
    """Its samples: as they are, in place, and with `out=`."""
    for sample in _first(operator.sample_inputs("cpu", torch.float32, requires_grad=False), MOST_SAMPLES):
        for variant in (operator.op, operator.inplace_variant):
            if variant is None:
                continue
            torch.manual_seed(_SEED)
            try:
                result = variant(_copy(sample.input), *sample.args, **sample.kwargs)
            except Exception:  # broadcasting samples have no in-place variant
                continue
            if variant is operator.op and operator.supports_out and isinstance(result, torch.Tensor):
                _try_out(operator, sample, result)


def _try_out(operator: Any, sample: Any, result: torch.Tensor) -> None:
    try:
        operator.op(sample.input, *sample.args, **sample.kwargs, out=torch.empty_like(result))
    except Exception:  # some samples have none
        return


def _first(items: Iterable[Any], count: int) -> Iterator[Any]:
    for index, item in enumerate(items):
        if index == count:
            return
        yield item


def try_multi_tensor(evidence: Evidence) -> None:
    """The operators on lists of tensors, which optimizers use; op_db has them elsewhere."""
    lists = [[torch.rand(3, 4) + 0.5, torch.rand(5) + 0.5] for _ in range(3)]
    calls: list[Callable[..., Any]] = [
        lambda a, _b, _c: torch._foreach_zero_(a),
        lambda a, b, _c: torch._foreach_copy_(a, b),
        lambda a, b, _c: torch._foreach_add_(a, b),
        lambda a, _b, _c: torch._foreach_mul_(a, 0.9),
        lambda a, b, _c: torch._foreach_lerp_(a, b, 0.1),
        lambda a, b, c: torch._foreach_addcmul_(a, b, c),
        lambda a, b, c: torch._foreach_addcdiv_(a, b, c),
        lambda a, _b, _c: torch._foreach_sqrt_(a),
        lambda a, b, _c: torch._foreach_div_(a, b),
    ]
    with Trial(evidence):
        for call in calls:
            call(*[[each.clone() for each in one] for one in lists])


def main(words: list[str]) -> int:
    """Prints the table."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    evidence = Evidence()
    for operator in op_db:
        if words and not any(word in operator.name for word in words):
            continue
        if torch.float32 not in operator.supported_dtypes("cpu"):
            continue
        try:
            with Trial(evidence), torch.no_grad():
                try_operator(operator)
        except Exception as error:  # its samples need what this machine lacks
            print(f"{operator.name}: {type(error).__name__}", file=sys.stderr)
    try_multi_tensor(evidence)
    found = evidence.overwritten()
    for name, arguments in found.items():
        calls = sum(evidence.whole[name, argument] for argument in arguments)
        print(f'    "{name}": {arguments!r},  # {calls} calls')
    print(f"{len(found)} operators overwrite, {len(evidence.partial)} arguments do not", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
