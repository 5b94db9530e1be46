"""What torch's operators do to memory, derived from their schemas and, where those are silent, from lists.

Everything is asked once per operator and then kept: a recorder meets the same hundred operators thousands of times.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from umadvise._hooks.operator_lists import operators, silent_writes
from umadvise.recording.dry.op_class import op_class_of
from umadvise.recording.dry.write_only import WRITE_ONLY
from umadvise.records.trace import Access, OpClass

if TYPE_CHECKING:
    import torch


def _aten(*names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names)


CREATIONS = operators("kCreations")
RESIZES = operators("kResizes")
UNANNOTATED_BYSTANDERS = operators("kUnannotatedBystanders")
SHAPE_READERS = operators("kShapeReaders")
READING_COLLECTIVES = operators("kReadingCollectives")
SILENT_WRITES = silent_writes()
_TRAINING = ("training", "train")  # what the argument is called that says whether an op trains
# The host waits for what they compute: a value, or the size of a result (torch/csrc/autograd/python_variable_indexing
# and the CUDA kernels of these, which all end in a copy to the host).
HOST_TOUCHES = _aten(
    *("_local_scalar_dense", "is_nonzero", "equal", "allclose", "nonzero", "masked_select", "_unique", "_unique2"),
    *("unique_dim", "unique_consecutive", "unique_dim_consecutive", "bincount", "histc", "embedding_renorm_"),
)


class OpKind(Enum):
    """Whether an op has accesses: views have none, and ops that only make memory neither."""

    UNTOUCHING = 0
    CREATION = 1
    OPERATION = 2


@dataclass(frozen=True, slots=True)
class TensorArgument:
    """An argument that may hold tensors.

    Attributes:
        index: position among the schema's arguments, from 0.
        name: the argument's name in the schema.
        flags: what the op does to it.
        only_in_training: a write, if the argument named training is true, else a read.
    """

    index: int
    name: str
    flags: Access
    only_in_training: bool = False


@dataclass(frozen=True, slots=True)
class OperatorInfo:
    """One overload of an operator.

    Attributes:
        name: full name with the overload, such as "aten::add_.Tensor".
        kind: whether the operator touches bytes, only makes memory, or does neither.
        arguments: the arguments whose tensors the op reads or writes, in the order of the schema.
        training_index: position of the argument that says whether the op trains (`training` or `train`); -1 where there
            is none.
        op_class: what limits the operator's speed.
        host_touch: whether the host waits for the result.
        composite: whether it only calls other operators on the backend that it was derived for.
    """

    name: str
    kind: OpKind
    arguments: tuple[TensorArgument, ...]
    training_index: int
    op_class: OpClass
    host_touch: bool
    composite: bool


_CHANGES = Access.READ | Access.WRITE | Access.IN_PLACE
_OVERWRITES = Access.WRITE | Access.WHOLE


def full_name(schema: torch._C.FunctionSchema) -> str:
    """An operator's name with its overload."""
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


def derive(func: torch._ops.OpOverload, backend: str = "CPU") -> OperatorInfo:
    """Derives what an overload does; `backend` is the dispatch key whose kernel would run."""
    import torch

    schema = func._schema
    base = schema.name
    name = full_name(schema)
    arguments = tuple(_tensor_arguments(schema, says_what_it_writes(func)))
    returned = any(_may_hold_tensors(result.type) for result in schema.returns)
    returns_view = any(result.alias_info is not None and not result.alias_info.is_write for result in schema.returns)
    if base in CREATIONS:
        kind, arguments = OpKind.CREATION, ()
    elif base in RESIZES:
        kind = OpKind.OPERATION
    elif (
        not (arguments or returned)
        or (base.startswith("aten::") and (returns_view or torch.Tag.inplace_view in func.tags))
        or base in UNANNOTATED_BYSTANDERS
    ):
        kind = OpKind.UNTOUCHING
    else:
        kind = OpKind.OPERATION
    training = [index for index, argument in enumerate(schema.arguments) if argument.name in _TRAINING]
    return OperatorInfo(
        name=name,
        kind=kind,
        arguments=arguments,
        training_index=training[0] if training else -1,
        op_class=op_class_of(base, pointwise=torch.Tag.pointwise in func.tags),
        host_touch=base in HOST_TOUCHES,
        composite=_is_composite(name, backend),
    )


def _is_composite(name: str, backend: str) -> bool:
    import torch

    def has_kernel(key: str) -> bool:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))

    others = (backend, "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
    return has_kernel("CompositeImplicitAutograd") and not any(map(has_kernel, others))


def says_what_it_writes(func: torch._ops.OpOverload) -> bool:
    """Whether an operator's schema can be believed about what it writes.

    torch's own kernels are searched for what their schemas keep quiet about (tools/find_silent_writes.py). Elsewhere a
    schema without any alias is as often one that nobody thought about as a promise: `c10d::allreduce_` has none. So
    there it takes an alias somewhere, or the tag with which an author says that the schema is right, as whoever calls
    `torch.library.custom_op(mutates_args=...)` does; and not even that for a name that ends as those of writing ops do.
    """
    import torch

    schema = func._schema
    return (
        schema.name.startswith("aten::")
        or any(each.alias_info is not None for each in (*schema.arguments, *schema.returns))
        or (torch.Tag.pt2_compliant_tag in _tags(schema) and not schema.name.endswith("_"))
    )


def _tags(schema: torch._C.FunctionSchema) -> Collection[torch.Tag]:
    """Returns the tags of the registration, because Python's operators have others in places (`torch._prims`)."""
    import torch

    _, _, tags = torch._C._get_operation_overload(schema.name, schema.overload_name)
    return tags


def _may_hold_tensors(type_: Any) -> bool:
    kind = type_.kind()
    return kind == "TensorType" or (kind in ("OptionalType", "ListType") and _may_hold_tensors(type_.getElementType()))


def _tensor_arguments(schema: torch._C.FunctionSchema, believed: bool) -> list[TensorArgument]:
    overwritten = WRITE_ONLY.get(full_name(schema), ())
    found = []
    for index, argument in enumerate(schema.arguments):
        if not _may_hold_tensors(argument.type) or (index == 0 and schema.name in SHAPE_READERS):
            continue
        if index == 1 and schema.name in RESIZES:  # a shape
            continue
        silent = SILENT_WRITES.get(schema.name, {}).get(argument.name)
        if argument.name in overwritten:
            flags = _OVERWRITES
        elif _is_read_by_collective(schema.name, argument.name):
            flags = Access.READ
        elif silent or not believed or (argument.alias_info is not None and argument.alias_info.is_write):
            flags = _CHANGES
        else:
            flags = Access.READ
        found.append(TensorArgument(index, argument.name, flags, only_in_training=silent == "when_training"))
    return found


def _is_read_by_collective(op: str, argument: str) -> bool:
    return op in READING_COLLECTIVES or (op.startswith("c10d::") and argument.startswith("input"))
