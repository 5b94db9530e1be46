"""What the dry recorder writes down: every op of a thread while the mode is on, and the life of every storage.

The columns of the trace are filled directly: a step of BERT-Large is ten thousand ops, and each microsecond counts.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from umadvise.errors import UsageError
from umadvise.recording.dry import in_place, workspace
from umadvise.recording.dry.known_operator import KnownOperator, span_of
from umadvise.recording.dry.op_origins import OpOrigins
from umadvise.recording.dry.roofline import arithmetic_of
from umadvise.recording.dry.scratch import Scratch
from umadvise.recording.present import in_order_of_use
from umadvise.recording.tables import filled
from umadvise.records.enums import Role
from umadvise.records.trace import (
    ARITHMETIC,
    UNKNOWN,
    Access,
    Accesses,
    EventKind,
    Events,
    OpClass,
    Ops,
    Storages,
    Target,
    Trace,
)
from umadvise.records.trace_check import check as check_trace

_MADE = int(Access.WRITE | Access.WHOLE)
_WHOLE = int(Access.WHOLE)


Touch = tuple[int, int, int, int, int]
"""A row of accesses: op, storage, offset and length in bytes, flags."""


class _Death(weakref.ref[torch.UntypedStorage]):
    """Tells that a storage is gone, and which one it was."""

    __slots__ = ("address", "index")
    index: int
    address: int


class _Operator(KnownOperator):
    """An operator, and what it is called in the trace."""

    __slots__ = ("name", "workspace")

    def __init__(self, func: torch._ops.OpOverload, target: Target) -> None:
        super().__init__(func, target.upper())
        self.name = -1
        self.workspace: workspace.Model | None = workspace.model_of(self.info.name, target)


class MetaTape(TorchDispatchMode):
    """A recorder of ops on meta tensors. `place` what is there already, then run the step with the mode on."""

    def __init__(self, origins: OpOrigins, target: Target, *, under_mode: bool = False) -> None:
        """Begins with nothing recorded.

        Args:
            origins: what tells in which module and phase an op runs.
            target: hardware whose kernels are recorded.
            under_mode: whether the run that is recorded has a Python mode on itself, where autograd's engine works as
                it does under this one.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self._origins = origins
        self._under_mode = under_mode
        self._uncounted: set[int] = set()  # addresses of StorageImpls
        self._target: Target = target
        self._host_counts = target == "cpu"  # on a GPU, tensors of the host are no part of the trace
        self._strings: dict[str, int] = {"": 0}
        self._operators: dict[torch._ops.OpOverload, _Operator] = {}
        self._storages: dict[int, int] = {}  # address of the StorageImpl: index
        self._deaths: dict[int, _Death] = {}
        self._columns: dict[str, list[int]] = {name: [] for name in Storages.DTYPES}
        self._bytes = self._columns["bytes"]
        self._ops: list[tuple[int, ...]] = []
        self._arithmetic: list[torch.dtype | None] = []
        self._accesses: list[Touch] = []
        self._events: list[tuple[int, int, int, int]] = []
        self._present: list[int] = []  # storages from before the trace, in the order in which they were met
        self._on = False

    def __enter__(self) -> MetaTape:
        self._on = True
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._on = False

    # ---- storages -------------------------------------------------------------------------------------------------

    def place(self, tensor: torch.Tensor, role: Role, name: str) -> None:
        """Registers a tensor that is there before the step."""
        if self._counts(tensor):
            storage = tensor.untyped_storage()
            if storage._cdata not in self._storages and storage.nbytes():
                self._present.append(self._add(storage, role, name))

    def make(self, tensor: torch.Tensor) -> None:
        """Writes down a tensor that torch has made past every Python mode, as `torch.tensor(1.0)`."""
        phase, module = self._origins.now()
        made = self._made(tensor, module) if self._counts(tensor) else []
        if made:
            empty = torch.ops.aten.empty.memory_format
            self._write(self._operators.get(empty) or self._meet(empty), (phase, self._string(module)), [], made)
            self._allocate((), made, tensor)
            self._ops[-1] += (UNKNOWN,)
            self._arithmetic.append(None)

    def leave_out(self, tensor: torch.Tensor) -> None:
        """Says that a tensor is in no memory of the device that is recorded, for as long as it lives."""
        self._uncounted.add(tensor.untyped_storage()._cdata)

    def index_of(self, tensor: torch.Tensor) -> int | None:
        """The storage of the trace that a tensor's is; None where it is none."""
        return self._storages.get(tensor.untyped_storage()._cdata)

    def name(self, tensor: torch.Tensor, role: Role, name: str) -> None:
        """Says what a tensor is that the step has made."""
        if self._counts(tensor):
            index = self._storages.get(tensor.untyped_storage()._cdata)
            if index is not None:
                self._columns["role"][index] = role
                self._columns["name"][index] = self._string(name)

    def gradient_hook(self, name: str) -> Callable[[torch.Tensor], None]:
        """For `register_post_accumulate_grad_hook`: the parameter's gradient has arrived."""

        def arrived(parameter: torch.Tensor) -> None:
            if parameter.grad is not None:
                self.name(parameter.grad, Role.GRADIENT, f"{name}.grad")

        return arrived

    def place_scratch(self, size_bytes: int, name: str) -> None:
        """Registers scratch memory that a library keeps between steps."""
        index = self._scratch(size_bytes, 0)
        self._columns["name"][index] = self._string(name)
        self._present.append(index)

    @property
    def op_count(self) -> int:
        """Number of ops that were recorded so far."""
        return len(self._ops)

    @property
    def multiplies(self) -> bool:
        """Whether an op was a product of matrices."""
        return any(each.info.op_class is OpClass.MATMUL for each in self._operators.values())

    def _counts(self, tensor: torch.Tensor) -> bool:
        if tensor.layout is not torch.strided:
            raise UsageError(
                f"the step cannot be recorded without data: it makes a tensor of layout {tensor.layout}, whose size "
                "depends on values. Expected dense tensors alone (of embeddings, sparse=False); record it from a run "
                "instead (umadvise run --record)"
            )
        if self._uncounted and tensor.untyped_storage()._cdata in self._uncounted:
            return False
        return tensor.is_meta or self._host_counts

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def _add(self, storage: torch.UntypedStorage, role: Role, name: str = "", module: str = "") -> int:
        columns = self._columns
        index = len(self._bytes)
        self._bytes.append(storage.nbytes())
        columns["role"].append(role)
        columns["name"].append(self._string(name))
        columns["module"].append(self._string(module))
        columns["successor"].append(-1)
        address = storage._cdata
        self._storages[address] = index
        death = _Death(storage, self._died)
        death.index, death.address = index, address
        self._deaths[address] = death
        return index

    def _died(self, death: _Death) -> None:
        if self._deaths.get(death.address) is death:
            del self._deaths[death.address], self._storages[death.address]
            if self._on:
                self._events.append((EventKind.FREE, len(self._ops) - 1, 0, death.index))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nobody compiles a recorded step, and torch's guard against it costs more than the op

    # ---- ops ------------------------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Records one op and runs it."""
        kwargs = kwargs or {}
        works_in_place = not self._under_mode and (func is in_place.ADD or func is in_place.INDEX_PUT)
        if works_in_place and (other := in_place.twin(func, args)) is not None:
            func = other
        operator = self._operators.get(func) or self._meet(func)
        if operator.untouching:
            return func(*args, **kwargs)
        if operator.info.composite:  # in inference mode nothing above has taken it apart
            with self:
                return func.decompose(*args, **kwargs)
        touched: list[Touch] = []
        arithmetic = None
        if not operator.creates:
            arithmetic = self._gather(operator, args, kwargs, touched)
        result = func(*args, **kwargs)
        phase, module = self._origins.now()
        made = self._made(result, module)
        if touched or made or self._host_counts:
            program = operator.workspace(args, kwargs, result) if operator.workspace else ()
            self._write(operator, (phase, self._string(module)), touched, made)
            self._allocate(program, made, result)
            flops = operator.formula(args, kwargs, result) if operator.formula else None
            self._ops[-1] += (UNKNOWN if flops is None else flops,)
            self._arithmetic.append(arithmetic)
        return result

    def _meet(self, func: torch._ops.OpOverload) -> _Operator:
        operator = self._operators[func] = _Operator(func, self._target)
        operator.name = self._string(operator.info.name)
        return operator

    def _gather(
        self, operator: _Operator, args: Sequence[Any], kwargs: dict[str, Any], touched: list[Touch]
    ) -> torch.dtype | None:
        """The accesses of an op's arguments; returns the first tensor's dtype."""
        dtype = None
        for tensor, flags in operator.operands(args, kwargs):
            if self._counts(tensor):
                if dtype is None:
                    dtype = tensor.dtype
                self._touch(tensor, flags, touched)
        return dtype

    def _touch(self, tensor: torch.Tensor, flags: int, touched: list[Touch]) -> None:
        if tensor.numel() == 0:
            return
        storage = tensor.untyped_storage()
        index = self._storages.get(storage._cdata)
        if index is None:
            if not storage.nbytes():
                return
            index = self._add(storage, Role.INTERMEDIATE)
            self._present.append(index)
        span, whole = span_of(tensor)
        if not whole:
            flags &= ~_WHOLE  # the gaps of a strided view keep what they hold
        touched.append((len(self._ops), index, int(tensor.storage_offset()) * tensor.itemsize, span, flags))

    def _made(self, result: Any, module: str) -> list[int]:
        """New storages among an op's results."""
        made: list[int] = []
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, list):
                made += self._made(tensor, module)
            elif isinstance(tensor, torch.Tensor) and self._counts(tensor):
                storage = tensor.untyped_storage()
                index = self._storages.get(storage._cdata)
                size = storage.nbytes()
                if index is not None and self._bytes[index] != size:  # resized: torch allocates and frees
                    self._died(self._deaths[storage._cdata])
                    index = None
                if index is None and size:
                    made.append(self._add(storage, Role.INTERMEDIATE, module=module))
        return made

    def _write(self, operator: _Operator, where: tuple[int, int], touched: list[Touch], made: list[int]) -> None:
        at = len(self._ops)
        self._ops.append((operator.name, *where, operator.info.op_class, operator.creates, operator.info.host_touch))
        self._accesses += touched
        if not operator.creates:
            self._accesses += [(at, index, 0, self._bytes[index], _MADE) for index in made]

    def _allocate(self, program: Scratch, made: list[int], result: Any) -> None:
        """An op's results and scratch come and go as the program says, what it does not name at the end."""
        at = len(self._ops) - 1
        scratch: list[int] = []
        waiting = list(made)
        for action, value in program:
            if action == "=":
                index = self._index_of(result[value] if isinstance(result, list | tuple) else result)
                if index in waiting:
                    waiting.remove(index)
                    self._events.append((EventKind.ALLOCATE, at, 1, index))
            elif action == "+":
                scratch.append(self._scratch(value, self._ops[at][2]))
                self._events.append((EventKind.ALLOCATE, at, 1, scratch[-1]))
            else:
                self._events.append((EventKind.FREE, at, 1, scratch[value - 1]))
        self._events += [(EventKind.ALLOCATE, at, 1, index) for index in waiting]

    def _index_of(self, tensor: torch.Tensor | None) -> int:
        return -1 if tensor is None else self._storages.get(tensor.untyped_storage()._cdata, -1)

    def _scratch(self, size_bytes: int, module: int) -> int:
        for column, value in zip(self._columns, (size_bytes, Role.WORKSPACE, 0, module, -1), strict=True):
            self._columns[column].append(value)
        return len(self._bytes) - 1

    # ---- the trace ------------------------------------------------------------------------------------------------

    def trace(self, workload: str) -> Trace:
        """What was recorded; durations are unknown."""
        names, phases, modules, classes, creates, touches, flops = _columns_of(self._ops, 7)
        at, storage, offset, span, flags = _columns_of(self._accesses, 5)
        present = [(EventKind.ALLOCATE, -1, 0, index) for index in self._present]
        events = np.array(present + self._events, np.int64).reshape(-1, 4)
        formats = {dtype: ARITHMETIC.index(arithmetic_of(dtype)) for dtype in set(self._arithmetic)}
        self._link_successors()
        trace = Trace(
            target=self._target,
            source="dry",
            device="",
            torch_version=str(torch.__version__),
            workload=workload,
            strings=tuple(self._strings),
            storages=Storages(**{name: np.array(column) for name, column in self._columns.items()}),
            ops=filled(
                Ops,
                len(self._ops),
                name=names,
                phase=phases,
                module=modules,
                step=np.ones(len(self._ops)),
                op_class=classes,
                arithmetic=np.array([formats[dtype] for dtype in self._arithmetic]),
                flops=flops,
                creates=creates,
                host_touch=touches,
            ),
            accesses=Accesses(op=at, storage=storage, offset_bytes=offset, bytes=span, flags=flags),
            events=filled(
                Events, len(events), kind=events[:, 0], op=events[:, 1], inside=events[:, 2], storage=events[:, 3]
            ),
        )
        check_trace(trace)
        return in_order_of_use(trace)

    def _link_successors(self) -> None:
        """What was there, and is gone, is followed by the storage of its name and size that is there at the end."""
        names = list(zip(self._columns["name"], self._bytes, strict=True))
        alive = set(self._storages.values())
        present = set(self._present)
        heirs = {names[index]: index for index in alive - present if names[index][0]}
        for index in present - alive:
            self._columns["successor"][index] = heirs.pop(names[index], -1)


def _columns_of(rows: Sequence[tuple[int, ...]], width: int) -> Any:
    return np.array(rows, np.int64).reshape(-1, width).T
