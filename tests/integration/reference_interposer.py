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
from umadvise.recording.operators import CREATIONS, RESIZES, SHAPE_READERS, SILENT_WRITES, UNANNOTATED_BYSTANDERS
from umadvise.records.enums import Phase


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


def observed_natively(recording: _native.Recording) -> list[ObservedOp]:
    """What `_native.Device.recorded` gives, in the reference's terms."""
    accesses = [
        ObservedAccess(int(row["allocation"]), int(row["offset_bytes"]), int(row["bytes"]), bool(row["write"]))
        for row in recording.accesses
    ]
    outputs = recording.outputs.tolist()
    return [
        ObservedOp(
            _native.string(int(op["op"])),
            Phase(int(op["phase"])),
            bool(op["creates"]),
            tuple(accesses[int(op["first_access"]) :][: int(op["access_count"])]),
            tuple(outputs[int(op["first_output"]) :][: int(op["output_count"])]),
        )
        for op in recording.ops
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
        creates = _base_name(func) in CREATIONS
        accesses: list[ObservedAccess] = []
        if not creates:
            for tensor, write in touched_tensors(func, args, kwargs):
                whole = _base_name(func) in RESIZES
                accesses.extend(_touched_storage(tensor) if whole else _touched(tensor, write))
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
    if _base_name(func) in CREATIONS | RESIZES:
        return False
    schema = func._schema
    if not any("Tensor" in str(value.type) for value in (*schema.arguments, *schema.returns)):
        return True
    if not _base_name(func).startswith("aten::"):
        return False
    returns_alias = any(result.alias_info is not None and not result.alias_info.is_write for result in schema.returns)
    return returns_alias or torch.Tag.inplace_view in func.tags or _base_name(func) in UNANNOTATED_BYSTANDERS


def touched_tensors(
    func: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]
) -> Iterator[tuple[torch.Tensor, bool]]:
    """The tensors whose values an op uses, in the order of its schema, and whether it writes them."""
    name = _base_name(func)
    arguments = func._schema.arguments
    values = {argument.name: value for argument, value in zip(arguments, args, strict=False)} | kwargs
    believed = name.startswith("aten::") or any(each.alias_info for each in (*arguments, *func._schema.returns))
    believed = believed or (torch.Tag.pt2_compliant_tag in func.tags and name[-1] != "_")
    for index, argument in enumerate(arguments):
        if (index == 0 and name in SHAPE_READERS) or (index == 1 and name in RESIZES):
            continue
        announced = argument.alias_info is not None and argument.alias_info.is_write
        training = values.get("training", values.get("train", True))
        silent = not believed or (argument.name in SILENT_WRITES.get(name, ()) and training)
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


def _touched_storage(tensor: torch.Tensor) -> Iterator[ObservedAccess]:
    allocation = _native.allocation_at(_storage_address(tensor)) if _native.owns(_storage_address(tensor)) else None
    if allocation is not None:
        yield ObservedAccess(allocation.serial, 0, tensor.untyped_storage().nbytes(), write=True)


def _storage_address(tensor: torch.Tensor) -> int:
    if tensor.layout != torch.strided:
        return 0
    return int(torch._C.StorageBase.data_ptr(tensor.untyped_storage()))  # type: ignore[attr-defined]


def _serial(tensor: torch.Tensor) -> int:
    allocation = _native.allocation_at(_storage_address(tensor))
    return allocation.serial if allocation else 0
