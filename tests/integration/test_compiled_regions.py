"""One run of a compiled graph is one op: recorded, planned and guarded as one, and its bits are those of plain torch.

Most of this is about a backend that has torch's kernels run in graphs, as that takes no time to compile. What Inductor
makes for the CPU is tried on one program, and with UMADVISE_FULL=1 on all of them.
"""

import logging
import pickle
import subprocess
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import warm_processes
from compiled_programs import PROGRAMS, Blocks, Program, by_block, inputs_are_written
from region_backend import regions, runs
from small_networks import same_bits
from torch import nn
from usable_policies import RUNGS

import umadvise
from umadvise.records.enums import Phase
from umadvise.torch_seam import compiling, runtime

TOOL = Path(__file__).parents[2] / "tools" / "find_region_writes.py"


@pytest.fixture(autouse=True)
def nothing_compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    torch._dynamo.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "inductor"))
        yield
    torch._dynamo.reset()


def of_blocks() -> Program:
    torch.manual_seed(0)
    model = Blocks()
    umadvise.compile(model, backend=regions)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Program(model, optimizer, lambda x: model(x).square().mean())


def in_session(program: Program, policy: str, capacity: str, **options: Any) -> tuple[list[torch.Tensor], Any]:
    """What a training leaves, and the session, which has ended."""
    device = umadvise.EmulatedDevice(capacity)
    with umadvise.session(program.model, program.optimizer, device=device, policy=policy, **options) as um:
        found = program.train(um.step, um.to_device)
        assert um.swap_counters().swap_ins or um.counters().fault_groups or um.rung == "resident"
    return found, um


@pytest.mark.parametrize("policy", RUNGS)
def test_blocks_train_under_every_policy(policy: str) -> None:
    before = runs[0]
    expected = of_blocks().train(nullcontext, lambda x: x)
    plain = runs[0] - before
    found, _ = in_session(of_blocks(), policy, "256MiB" if policy == "resident" else "24MiB")
    assert all(map(same_bits, found, expected))
    assert runs[0] - before == 2 * plain == 2 * 2 * 5 * 4  # forward and backward of five blocks in four steps


def test_a_recording_knows_a_region_by_its_name_and_working_set() -> None:
    _, um = in_session(of_blocks(), "swap", "24MiB", record=True)
    trace = um.trace()
    names = [trace.strings[name] for name in trace.ops.name.tolist()]
    found = {phase: [] for phase in (Phase.FORWARD, Phase.BACKWARD)}
    for op, name in enumerate(names):
        if name.startswith("compiled::"):
            found[Phase(trace.ops.phase[op])].append(op)
            assert name.startswith(f"compiled::{Phase(trace.ops.phase[op]).name.lower()}_")
    assert [len(ops) for ops in found.values()] == [20, 20]
    touched = trace.accesses.storage[trace.accesses.op == found[Phase.FORWARD][-1]]
    labels = {trace.strings[name] for name in trace.storages.name[touched].tolist()}
    assert {"blocks.4.wide.weight", "blocks.4.norm.running_mean"} <= labels
    assert len(touched) > 8  # and what it made


def test_a_region_that_does_not_fit_is_refused_as_any_op() -> None:
    model = nn.ModuleList(nn.Linear(1024, 2048) for _ in range(3))  # 8 MiB each
    together = torch.compile(lambda x: sum(layer(x).sum() for layer in model), backend=regions)
    with (
        pytest.raises(torch.OutOfMemoryError, match="compiled::forward_graph"),
        umadvise.session(model, device="emulated", capacity="16MiB", policy="swap") as um,
        um.step(),
    ):
        together(um.to_device(torch.ones(8, 1024)))


# ---- Inductor --------------------------------------------------------------------------------------------------------


def test_what_inductor_compiles_in_place_writes_included() -> None:
    """Compiled before the session, and again in it."""
    expected = inputs_are_written().train(nullcontext, lambda x: x)
    found, _ = in_session(inputs_are_written(), "swap", "16MiB")
    assert all(map(same_bits, found, expected))


@pytest.mark.long
@pytest.mark.parametrize("policy", ["swap", "window", "auto"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program(program: Callable[[], Program], policy: str) -> None:
    expected = program().train(nullcontext, lambda x: x)
    torch._dynamo.reset()
    found, _ = in_session(program(), policy, "48MiB", budget="24MiB" if program is by_block else None)
    assert all(map(same_bits, found, expected))


def _found(*words: str) -> list[str]:
    ended = subprocess.run([warm_processes.python(), str(TOOL), *words], capture_output=True, text=True, check=False)
    assert ended.returncode == (3 if ended.stdout else 0), ended.stderr
    return ended.stdout.split()


@pytest.mark.long
def test_graphs_write_what_they_say() -> None:
    assert _found() == []
    assert _found("--announced-too", "by_block", "inputs_are_written") == ["by_block", "inputs_are_written"]


# ---- how graphs are compiled -----------------------------------------------------------------------------------------


class Inductor:
    """Stands in for what `torch.compile` makes for its default backend."""

    def __init__(self, **config: Any) -> None:
        self.config, self.seen = config, dict[str, Any]()

    def compile(self, graph: Any, inputs: Any) -> Any:
        self.seen = dict(self.config)
        return regions(graph, inputs)


def entered(backend: Inductor) -> Callable[..., Any]:
    """A backend that goes through the entry that takes Inductor's place."""
    compiler = compiling.GraphCompiler(runtime.current())
    return lambda graph, inputs: compiler.compile(Inductor.compile, backend, graph, inputs)


def test_a_graph_that_is_too_large_is_cut() -> None:
    def train(backend: Any, capacity: str | None) -> tuple[list[torch.Tensor], int]:
        torch.manual_seed(0)
        torch._dynamo.reset()
        model, before = Blocks(), runs[0]
        program = Program(
            model,
            torch.optim.AdamW(model.parameters()),
            lambda x: torch.compile(model, backend=backend())(x).square().mean(),
        )
        if capacity is None:
            return program.train(nullcontext, lambda x: x), runs[0] - before
        return in_session(program, "swap", capacity)[0], runs[0] - before

    expected, whole = train(lambda: regions, None)
    found, parts = train(lambda: entered(inductor), "20MiB")
    assert all(map(same_bits, found, expected))
    assert whole == 8
    assert parts >= 5 * whole


def test_a_graph_that_cannot_be_cut_runs_eagerly(caplog: pytest.LogCaptureFixture) -> None:
    with umadvise.session(nn.Linear(2, 2), device="emulated", capacity="16MiB", policy="swap"):
        before = runs[0]
        backend = entered(inductor)
        with caplog.at_level(logging.WARNING, "umadvise"):
            for shift in (1.0, 2.0):
                function = torch.compile(lambda x, shift=shift: ((x + shift) * 2 + 1).sum(), backend=backend)
                function(torch.ones(5 << 18))
    assert runs[0] == before
    assert len([line for line in caplog.messages if "runs eagerly" in line]) == 1


def test_cuda_graphs_stay_off(caplog: pytest.LogCaptureFixture) -> None:
    backend = Inductor(**{"triton.cudagraphs": True, "max_autotune": True})
    with umadvise.session(nn.Linear(2, 2), device="emulated", capacity="64MiB", policy="swap"):
        torch.compile(lambda x: x + 1, backend=entered(backend))(torch.ones(4))
    assert backend.seen == {"triton.cudagraphs": False, "max_autotune": True}
    assert backend.config == {"triton.cudagraphs": True, "max_autotune": True}
    assert any("CUDA graphs" in line for line in caplog.messages)


def test_modules_of_torchs_own_are_compiled() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = umadvise.compile(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), backend=regions)
    before = runs[0]
    model(torch.ones(2, 3, 8)).sum().backward()
    assert runs[0] == before + 2 * 3


inductor = Inductor()


class Stage(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(2)))


def test_blocks_are_what_repeats() -> None:
    def compiled(model: nn.Module) -> list[str]:
        umadvise.compile(model, backend="eager")
        return [name for name, module in model.named_modules() if module._compiled_call_impl is not None]

    assert compiled(Blocks(2)) == ["blocks.0", "blocks.1"]
    assert compiled(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == [""]  # not worth a graph each
    stages = nn.ModuleDict({"narrow": Stage(2), "wide": Stage(4)})  # these differ, what is in them does not
    assert compiled(stages) == [f"{stage}.layers.{layer}" for stage in ("narrow", "wide") for layer in (0, 1)]


def test_what_is_kept_on_a_graph_is_not_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs, found = torch._inductor.output_code.CompiledFxGraph, []
    with umadvise.session(nn.Linear(2, 2), device="emulated", capacity="64MiB", policy="swap"):
        guarded = graphs.__call__
        monkeypatch.setattr(graphs, "__call__", lambda graph, inputs: found.append(graph) or guarded(graph, inputs))
        torch.compile(lambda x: x + 1, backend=regions)(torch.ones(1 << 20).mul(2))
        monkeypatch.undo()
    kept = vars(found[0])["_umadvise_region"]
    assert kept.name.startswith("compiled::forward_graph")
    assert pickle.loads(pickle.dumps(kept)) is None
