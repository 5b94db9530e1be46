"""The interposer once more, in Python: a `TorchDispatchMode` that derives the op stream which interposer.cpp must give.

It is written from the same rules and shares no code with it. Far too slow to train with; tests compare the two, and the
benchmark measures what the native one saves.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from umadvise import _native
from umadvise._abi import Phase, RecordedAccess, RecordedOp


def _aten(*names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names)


# Operators whose schemas do not say what they do to memory, by name without overload.
_CREATIONS = _aten(
    *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"),
    *("resize_", "resize_as_", "set_"),
)
_UNANNOTATED_BYSTANDERS = _aten(
    *("_unsafe_view", "unsafe_split", "unsafe_split_with_sizes", "_fused_sdp_choice", "_has_same_storage_numel"),
    *("is_same_size", "is_pinned", "is_set_to", "record_stream"),
)
_SHAPE_READERS = _aten(
    *("ones_like", "zeros_like", "full_like", "rand_like", "randn_like", "randint_like"),
    *("new_zeros", "new_ones", "new_full"),
)
_STATISTICS = ("running_mean", "running_var")
_SILENT_WRITES = {
    **dict.fromkeys(_aten("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"), _STATISTICS),
    **dict.fromkeys(_aten("batch_norm_update_stats", "batch_norm_gather_stats"), _STATISTICS),
    "aten::batch_norm_gather_stats_with_counts": _STATISTICS,
    "aten::mkldnn_rnn_layer_backward": ("workspace",),
    "aten::_cudnn_rnn_backward": ("reserve",),
    "aten::miopen_rnn_backward": ("reserve",),
}


@dataclass(frozen=True, slots=True)
class ObservedAccess:
    """Bytes of one allocation that an op touches."""

    allocation: int
    offset_bytes: int
    bytes: int
    write: bool


@dataclass(frozen=True, slots=True)
class ObservedOp:
    """One op: what it touches in the order of its schema, and the allocations of its outputs (0 for foreign ones)."""

    name: str
    phase: Phase
    creates: bool
    accesses: tuple[ObservedAccess, ...]
    outputs: tuple[int, ...]


def observed_natively(recorded: tuple[list[RecordedOp], list[RecordedAccess], list[int]]) -> list[ObservedOp]:
    """What `_native.recorded_ops` gives, in the reference's terms."""
    ops, accesses, outputs = recorded
    return [
        ObservedOp(
            op.op,
            Phase(op.phase),
            op.creates,
            tuple(
                ObservedAccess(access.allocation, access.offset_bytes, access.bytes, access.write)
                for access in accesses[op.first_access : op.first_access + op.access_count]
            ),
            tuple(outputs[op.first_output : op.first_output + op.output_count]),
        )
        for op in ops
    ]


class ReferenceInterposer(TorchDispatchMode):
    """Observes every op between enter and exit.

    Attributes:
        observed: the ops so far.
        phase: what ops outside backward nodes belong to.
    """

    def __init__(self, phase: Phase = Phase.FORWARD) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.observed: list[ObservedOp] = []
        self.phase = phase

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Observes one op and runs it."""
        kwargs = kwargs or {}
        if _is_composite(func):  # in inference mode nothing above has taken it apart
            with self:
                return func.decompose(*args, **kwargs)
        if _touches_nothing(func):
            return func(*args, **kwargs)
        phase = self._phase_now()
        creates = _base_name(func) in _CREATIONS
        accesses: list[ObservedAccess] = []
        if not creates:
            for tensor, write in touched_tensors(func, args, kwargs):
                accesses.extend(_touched(tensor, write))
        results = func(*args, **kwargs)
        outputs = tuple(_serial(tensor) for tensor in _tensors(results) if _storage_address(tensor))
        self.observed.append(ObservedOp(_full_name(func), phase, creates, tuple(accesses), outputs))
        return results

    def _phase_now(self) -> Phase:
        in_backward = torch._C._current_autograd_node() is not None
        return Phase.BACKWARD if in_backward and self.phase != Phase.OPTIMIZER else self.phase


def _base_name(func: torch._ops.OpOverload) -> str:
    return str(func._schema.name)


def _full_name(func: torch._ops.OpOverload) -> str:
    overload = func._schema.overload_name
    return f"{_base_name(func)}.{overload}" if overload else _base_name(func)


def _is_composite(func: torch._ops.OpOverload) -> bool:
    def has_kernel(key: str) -> bool:
        return torch._C._dispatch_has_kernel_for_dispatch_key(_full_name(func), key)

    return has_kernel("CompositeImplicitAutograd") and not any(
        map(has_kernel, ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"))
    )


def _touches_nothing(func: torch._ops.OpOverload) -> bool:
    if _base_name(func) in _CREATIONS:
        return False
    schema = func._schema
    if not any("Tensor" in str(value.type) for value in (*schema.arguments, *schema.returns)):
        return True
    returns_alias = any(result.alias_info is not None and not result.alias_info.is_write for result in schema.returns)
    return returns_alias or torch.Tag.inplace_view in func.tags or _base_name(func) in _UNANNOTATED_BYSTANDERS


def touched_tensors(
    func: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]
) -> Iterator[tuple[torch.Tensor, bool]]:
    """The tensors whose values an op uses, in the order of its schema, and whether it writes them."""
    name = _base_name(func)
    arguments = func._schema.arguments
    values = {argument.name: value for argument, value in zip(arguments, args, strict=False)} | kwargs
    for index, argument in enumerate(arguments):
        if index == 0 and name in _SHAPE_READERS:
            continue
        announced = argument.alias_info is not None and argument.alias_info.is_write
        silent = argument.name in _SILENT_WRITES.get(name, ()) and values.get("training", True)
        for tensor in _tensors(values.get(argument.name)):
            yield tensor, announced or silent


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for element in value:
            yield from _tensors(element)


def _address(tensor: torch.Tensor) -> int:
    return int(torch._C.TensorBase.data_ptr(tensor))  # the class's own: a patched data_ptr would export the storage


def _touched(tensor: torch.Tensor, write: bool) -> Iterator[ObservedAccess]:
    if tensor.layout != torch.strided or tensor.numel() == 0 or not _native.owns(_address(tensor)):
        return
    allocation = _native.allocation_at(_address(tensor))
    assert allocation is not None
    last_element = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    size_bytes = (last_element + 1) * tensor.element_size()
    yield ObservedAccess(allocation.serial, _address(tensor) - allocation.address, size_bytes, write)


def _storage_address(tensor: torch.Tensor) -> int:
    if tensor.layout != torch.strided:
        return 0
    return int(torch._C.StorageBase.data_ptr(tensor.untyped_storage()))  # type: ignore[attr-defined]


def _serial(tensor: torch.Tensor) -> int:
    allocation = _native.allocation_at(_storage_address(tensor))
    return allocation.serial if allocation else 0
