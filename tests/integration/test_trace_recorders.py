"""One step recorded dry, on the meta device, and live, on the emulated device: the same ops, storages and bytes.

Library scratch is compared by what it does to the peak, because it depends on the machine's instruction set.
"""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from small_networks import NETWORKS, OPTIMIZERS
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import umadvise
from umadvise.recording.dry import recorder as dry
from umadvise.recording.workload import Workload, training_step
from umadvise.records.enums import Role
from umadvise.records.trace import Access, EventKind, Trace

MIB = 1 << 20
STEPS = 3
WORKSPACE_TOLERANCE = 0.02  # of the peak: what issue and design ask for


def cross_entropy(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(inputs), targets)


def network(name: str, optimizer: str = "adamw") -> Callable[[], Workload]:
    def build() -> Workload:
        torch.manual_seed(2021)
        model = NETWORKS[name].model()
        return training_step(model, OPTIMIZERS[optimizer](model.parameters()), cross_entropy, *NETWORKS[name].batch())

    return build


def live(build: Callable[[], Workload], counting: str = "ordered") -> tuple[Trace, Trace, int]:
    """The trace of a session, its last step, and the peak that the allocator saw in that step."""
    workload = build()
    device = umadvise.EmulatedDevice(capacity="1GiB", counting=counting)
    with umadvise.session(
        list(workload.modules), list(workload.optimizers), device=device, policy="advise", record=True
    ) as um:
        for each in workload.inputs:
            each.data = um.to_device(each)
        for _ in range(STEPS):
            with um.step():
                workload.step()
        peak = um.memory_stats().requested_peak_bytes
    return um.trace(), um.trace(step=STEPS), peak


def ops(trace: Trace) -> list[tuple[str, int, str]]:
    return [
        (trace.strings[name], int(phase), trace.strings[module])
        for name, phase, module in zip(trace.ops.name, trace.ops.phase, trace.ops.module, strict=True)
    ]


def storages(trace: Trace) -> list[tuple[int, int, int, int]]:
    """Role, bytes, birth and death of what is no scratch, in order of birth."""
    born = trace.events.storage[trace.events.kind == EventKind.ALLOCATE]
    born = born[trace.storages.role[born] != Role.WORKSPACE]
    table = (trace.storages.role[born], trace.storages.bytes[born], trace.births[born], trace.deaths[born])
    return [tuple(map(int, row)) for row in zip(*table, strict=True)]  # type: ignore[misc]


def accesses(trace: Trace) -> list[tuple[int, ...]]:
    """Op, storage by order of birth, offset, bytes and flags."""
    born = trace.events.storage[trace.events.kind == EventKind.ALLOCATE]
    born = born[trace.storages.role[born] != Role.WORKSPACE]
    place = np.full(len(trace.storages), -1)
    place[born] = np.arange(len(born))
    table = trace.accesses
    columns = (table.op, place[table.storage], table.offset_bytes, table.bytes, table.flags)
    return [tuple(map(int, row)) for row in zip(*columns, strict=True)]


def check_equal(build: Callable[[], Workload]) -> tuple[Trace, Trace]:
    expected, (_, found, peak) = dry.record(build, target="cpu"), live(build)
    assert found.peak_bytes == peak
    assert ops(expected) == ops(found)
    assert storages(expected) == storages(found)
    assert accesses(expected) == accesses(found)
    assert abs(expected.peak_bytes / peak - 1) <= WORKSPACE_TOLERANCE
    return expected, found


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str) -> None:
    check_equal(network(name))


# ---- what a training loop may do -----------------------------------------------------------------------------------


def layers() -> nn.Sequential:
    torch.manual_seed(2021)
    blocks = [nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.LayerNorm(256), nn.Dropout(0.1)) for _ in range(3)]
    return nn.Sequential(*blocks)


Make = Callable[..., torch.optim.Optimizer]


def loop(
    make: Make,
    *,
    parts: int = 1,
    forward: Callable[[nn.Sequential, torch.Tensor], torch.Tensor] = lambda model, x: model(x),
    clips: bool = False,
    set_to_none: bool = True,
) -> Callable[[], Workload]:
    """A training loop that zeroes gradients last."""

    def build() -> Workload:
        model, inputs, targets = layers(), torch.randn(32, 256), torch.randn(32, 256)
        optimizer = make(model.parameters())

        def step() -> None:
            for _ in range(parts):
                functional.mse_loss(forward(model, inputs), targets).backward()
            if clips:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)

        return Workload(step, (model,), (optimizer,), (inputs, targets))

    return build


def sgd(parameters: object, **options: bool) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, **options)  # type: ignore[arg-type]


def adamw(parameters: object, **options: bool) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, **options)  # type: ignore[arg-type]


LOOPS = {
    "gradient accumulation": loop(sgd, parts=3),
    "gradients zeroed in place": loop(sgd, set_to_none=False),
    "foreach sgd": loop(lambda parameters: sgd(parameters, foreach=True)),
    "fused sgd": loop(lambda parameters: sgd(parameters, fused=True)),
    "fused adamw": loop(lambda parameters: adamw(parameters, fused=True)),
    "adagrad": loop(lambda parameters: torch.optim.Adagrad(parameters, lr=0.1)),
}


@pytest.mark.parametrize("name", LOOPS)
def test_training_loops(name: str) -> None:
    check_equal(LOOPS[name])


def test_clipping_copies_norms_out() -> None:
    """clip_grad_norm_ sends norms to the first gradient's device, "cpu", which on the emulated device is the host."""
    build = loop(sgd, clips=True)
    expected, (_, found, peak) = dry.record(build, target="cpu"), live(build)
    assert ops(expected) == ops(found)
    assert storages(expected)[: len(layers())] == storages(found)[: len(layers())]
    copied = found.events.op[found.events.kind == EventKind.HOST_READ].tolist()
    after = Counter(found.op(op).name for op in copied)
    assert after == {"aten::_foreach_norm.Scalar": len(list(layers().parameters())), "aten::clamp": 1}
    assert abs(expected.peak_bytes / peak - 1) <= WORKSPACE_TOLERANCE


def test_foreach_adamw_differs_only_in_a_scalar_of_the_host() -> None:
    """torch.tensor(1.0) is made past every Python mode; the interposer sees its memory."""
    build = loop(lambda parameters: adamw(parameters, foreach=True))
    expected, (_, found, peak) = dry.record(build, target="cpu"), live(build)
    assert Counter(ops(found)) - Counter(ops(expected)) == Counter({("aten::empty.memory_format", 3, ""): 1})
    assert not Counter(ops(expected)) - Counter(ops(found))
    assert abs(expected.peak_bytes / peak - 1) <= WORKSPACE_TOLERANCE


def checkpointed(model: nn.Sequential, inputs: torch.Tensor) -> torch.Tensor:
    for block in model:
        inputs = checkpoint(block, inputs, use_reentrant=False)
    return inputs


def test_checkpointing() -> None:
    """Recomputation ends in an exception within its last op: the interposer has seen that op begin, a mode has not."""
    build = loop(adamw, forward=checkpointed)
    expected, (_, found, peak) = dry.record(build, target="cpu"), live(build)
    stopped = Counter(ops(found)) - Counter(ops(expected))
    assert {name for name, _, _ in stopped} == {"aten::mul.Tensor"}
    assert stopped.total() == len(layers())
    assert not Counter(ops(expected)) - Counter(ops(found))
    assert sum(bytes_ for _, bytes_, _, _ in storages(expected)) == sum(bytes_ for _, bytes_, _, _ in storages(found))
    assert abs(expected.peak_bytes / peak - 1) <= WORKSPACE_TOLERANCE


def test_autocast() -> None:
    def build() -> Workload:
        torch.manual_seed(2021)
        model = nn.Sequential(
            *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(16 * 256, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 10)),
        )
        optimizer = sgd(model.parameters())
        images, labels = torch.randn(4, 3, 16, 16), torch.randint(10, (4,))

        def step() -> None:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()

        return Workload(step, (model,), (optimizer,), (images, labels))

    expected, (_, found, _) = dry.record(build, target="cpu"), live(build)
    assert ops(expected) == ops(found)
    assert storages(expected) == storages(found)
    assert accesses(expected) == accesses(found)


# ---- live ----------------------------------------------------------------------------------------------------------


def test_a_step_repeats() -> None:
    """What dies of the past step's gradients is what this step's take the place of."""
    _, found, _ = live(network("mlp"))
    gone = np.flatnonzero((found.births < 0) & (found.deaths < len(found.ops)))
    assert len(gone)
    heirs = found.storages.successor[gone]
    assert (heirs >= 0).all()
    assert (found.storages.bytes[heirs] == found.storages.bytes[gone]).all()
    assert [found.storage(int(index)).name for index in heirs] == [found.storage(int(index)).name for index in gone]


def test_the_whole_session_is_recorded() -> None:
    whole, last, _ = live(network("embedding"))
    assert set(whole.ops.step.tolist()) - {0} == set(range(1, STEPS + 1))
    assert (whole.ops.step == STEPS).sum() == len(last.ops)
    came = whole.events.bytes[whole.events.kind == EventKind.HOST_WRITE].sum()
    parameters = sum(parameter.numel() * 4 for parameter in NETWORKS["embedding"].model().parameters())
    assert came >= parameters  # the session took them in by copies
    known = whole.ops.duration_ns
    assert (known >= 0).all()
    assert known.sum() > 0


def test_raw_counting_keeps_every_service_in_order() -> None:
    workload = network("mlp", "sgd")()
    device = umadvise.EmulatedDevice(capacity="96MiB", counting="raw")  # less than the step needs
    with umadvise.session(
        list(workload.modules), list(workload.optimizers), device=device, policy="advise", record=True
    ) as um:
        for _ in range(2):
            with um.step():
                workload.step()
        counted = um.counters().fault_groups
        trace = um.trace()
    served = np.isin(trace.events.kind, (EventKind.SERVICE_READ, EventKind.SERVICE_WRITE))
    assert served.sum() == counted > 0
    beginnings = trace.events.offset_bytes[served]
    assert (beginnings < trace.storages.bytes[trace.events.storage[served]]).all()
    assert (beginnings > -2 * MIB).all()


def test_ordered_counting_keeps_only_what_the_guard_did_not_touch() -> None:
    workload = network("mlp", "sgd")()
    device = umadvise.EmulatedDevice(capacity="1GiB")
    with umadvise.session(
        list(workload.modules), list(workload.optimizers), device=device, policy="advise", record=True
    ) as um:
        with um.step():
            workload.step()
        unordered = um.counters().unordered_faults
        trace = um.trace()
    served = np.isin(trace.events.kind, (EventKind.SERVICE_READ, EventKind.SERVICE_WRITE))
    assert served.sum() == unordered


def test_what_is_overwritten_whole_need_not_be_there() -> None:
    _, found, _ = live(loop(sgd, set_to_none=False))
    zeroed = [op for op in map(found.op, range(len(found.ops))) if op.name == "aten::zero_"]
    assert zeroed
    assert all(access.flags == Access.WRITE | Access.WHOLE for op in zeroed for access in op.accesses)


def test_a_session_that_does_not_record_has_no_trace() -> None:
    model = nn.Linear(2, 2)
    with (
        umadvise.session(model, device="emulated", capacity="16MiB") as um,
        pytest.raises(umadvise.errors.StateError, match="record=True"),
    ):
        um.trace()


def test_a_step_that_was_not_there() -> None:
    model = nn.Linear(2, 2)
    with umadvise.session(model, device="emulated", capacity="16MiB", record=True) as um:
        with um.step():
            model(torch.ones(1, 2)).sum().backward()
        with pytest.raises(umadvise.errors.UsageError, match="no step 2: it has steps 1 to 1"):
            um.trace(step=2)
