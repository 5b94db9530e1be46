"""The dry recorder against closed forms and published or independently measured figures."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from umadvise.devices import catalogue
from umadvise.errors import UsageError
from umadvise.recording.dry import recorder as dry
from umadvise.recording.workload import Workload, training_step
from umadvise.records.enums import Phase, Role
from umadvise.records.trace import UNKNOWN, Access, EventKind, OpClass, Trace

EXAMPLES = Path(__file__).parents[3] / "examples"
GB, GIB = 10**9, 1 << 30


@pytest.fixture(scope="module")
def networks() -> dict[str, Callable[..., Workload]]:
    sys.path.insert(0, str(EXAMPLES))
    try:
        from networks import NETWORKS
    finally:
        sys.path.remove(str(EXAMPLES))
    return dict(NETWORKS)


def squares(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return model(inputs).square().sum()


def linear(features: int = 64, batch: int = 8) -> Workload:
    model = nn.Linear(features, features, bias=False)
    return training_step(model, torch.optim.SGD(model.parameters(), lr=0.1), squares, torch.randn(batch, features))


def adam() -> Workload:
    model = nn.Linear(64, 64, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    return training_step(model, optimizer, squares, torch.randn(8, 64))


def named(trace: Trace, *names: str) -> list[int]:
    return [index for index in range(len(trace.ops)) if trace.op(index).name in names]


# ---- closed forms --------------------------------------------------------------------------------------------------


def test_a_linear_layer() -> None:
    features, batch = 64, 8
    trace = dry.record(lambda: linear(features, batch), target="cpu")
    assert trace.source == "dry"
    roles = trace.storages.role
    weight_bytes, batch_bytes = 4 * features * features, 4 * batch * features
    assert trace.storages.bytes[roles == Role.PARAMETER].tolist() == [weight_bytes]
    assert trace.storages.bytes[roles == Role.INPUT].tolist() == [batch_bytes]
    assert trace.storages.bytes[roles == Role.GRADIENT].tolist() == [weight_bytes, weight_bytes]  # last step's too
    products = named(trace, "aten::mm")
    assert [trace.op(index).flops for index in products] == [2 * batch * features * features] * 2  # inputs need none
    assert [trace.op(index).phase for index in products] == [Phase.FORWARD, Phase.BACKWARD]
    assert {trace.op(index).module for index in products} == {"Linear"}


def test_a_gradient_takes_the_place_of_the_last_one() -> None:
    trace = dry.record(linear, target="cpu")
    gradients = np.flatnonzero(trace.storages.role == Role.GRADIENT)
    old, new = sorted(gradients, key=lambda index: trace.births[index])
    assert (trace.births[old], trace.deaths[old]) == (-1, -1)  # zero_grad comes before the first op
    assert trace.deaths[new] == len(trace.ops)
    assert trace.storages.successor[old] == new
    assert trace.storage(int(new)).name == trace.storage(int(old)).name == "weight.grad"


def test_outputs_are_written_whole_and_views_have_no_accesses() -> None:
    def build() -> Workload:
        source = torch.randn(4, 6)

        def step() -> torch.Tensor:
            return source.t()[1:3] + 1.0

        return Workload(step, inputs=(source,))

    trace = dry.record(build, target="cuda")
    assert len(trace.ops) == 1
    read, written = trace.op(0).accesses
    # Rows 1 and 2 of the transposed matrix: columns 1 and 2, from element 1 to element 3 * 6 + 2.
    assert (read.offset_bytes, read.bytes, read.flags) == (4, 4 * (3 * 6 + 2), Access.READ)
    assert (written.offset_bytes, written.bytes, written.flags) == (0, 4 * 8, Access.WRITE | Access.WHOLE)


def test_in_place_ops_read_and_write() -> None:
    def build() -> Workload:
        kept = torch.randn(16)

        def step() -> None:
            kept.add_(1.0)
            kept.zero_()
            kept[::2].zero_()

        return Workload(step, inputs=(kept,))

    trace = dry.record(build, target="cuda")
    flags = [trace.op(index).accesses[0].flags for index in range(3)]
    assert flags == [Access.READ | Access.WRITE | Access.IN_PLACE, Access.WRITE | Access.WHOLE, Access.WRITE]


def test_saved_tensors_die_node_by_node() -> None:
    depth = 6

    def build() -> Workload:
        model = nn.Sequential(*[nn.Tanh() for _ in range(depth)])
        source = torch.randn(1000, requires_grad=True)
        return Workload(lambda: model(source).sum().backward(), (model,), inputs=(source,))

    trace = dry.record(build, target="cpu")
    made = [trace.op(index).accesses[-1].storage for index in named(trace, "aten::tanh")]
    deaths = [int(trace.deaths[storage]) for storage in made]
    assert deaths == sorted(deaths, reverse=True)
    assert len(set(deaths)) == depth


# ---- targets -------------------------------------------------------------------------------------------------------


def attention(batch: int = 2, dtype: torch.dtype = torch.float32) -> Workload:
    model = nn.Linear(64, 192, dtype=dtype)

    def loss(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        query, key, value = model(inputs).view(batch, 16, 3, 4, 16).permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(query, key, value).sum()

    inputs = torch.randn(batch, 16, 64, dtype=dtype)
    return training_step(model, torch.optim.AdamW(model.parameters()), loss, inputs)


def convolution() -> Workload:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(0.5))
    return training_step(model, torch.optim.SGD(model.parameters()), squares, torch.randn(2, 3, 8, 8))


def recurrent() -> Workload:
    model = nn.LSTM(8, 16, num_layers=2)

    def loss(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        return model(inputs)[0].sum()

    return training_step(model, torch.optim.SGD(model.parameters()), loss, torch.randn(5, 2, 8))


def op_names(trace: Trace) -> set[str]:
    return {trace.strings[name].partition(".")[0].removeprefix("aten::") for name in trace.ops.name}


def test_attention_of_a_target() -> None:
    assert "_scaled_dot_product_flash_attention_for_cpu" in op_names(dry.record(attention, target="cpu"))
    assert "_scaled_dot_product_efficient_attention_backward" in op_names(dry.record(attention, target="cuda"))
    half = dry.record(lambda: attention(dtype=torch.float16), target="cuda")
    assert "_scaled_dot_product_flash_attention_backward" in op_names(half)


def test_kernels_of_a_target() -> None:
    cpu, cuda = (op_names(dry.record(convolution, target=target)) for target in ("cpu", "cuda"))
    assert {"native_batch_norm", "bernoulli_"} <= cpu
    assert {"cudnn_batch_norm", "cudnn_batch_norm_backward", "native_dropout"} <= cuda
    assert not cuda & {"native_batch_norm", "bernoulli_"}


def test_recurrent_layers_of_a_target() -> None:
    cpu, cuda = (dry.record(recurrent, target=target) for target in ("cpu", "cuda"))
    assert len(named(cpu, "aten::mkldnn_rnn_layer")) == 2
    assert len(named(cuda, "aten::_cudnn_rnn")) == len(named(cuda, "aten::_cudnn_rnn_backward")) == 1


def test_optimizers_of_a_target() -> None:
    """On a GPU the multi-tensor kernels are the default and step counters are the host's; on the CPU neither."""
    cpu, cuda = (dry.record(attention, target=target) for target in ("cpu", "cuda"))
    assert not any(name.startswith("_foreach") for name in op_names(cpu))
    assert "_foreach_addcdiv_" in op_names(cuda)
    steps = [storage for storage in range(len(cuda.storages)) if cuda.storage(storage).name.endswith(".step")]
    assert not steps
    assert sum(cpu.storage(storage).name.endswith(".step") for storage in range(len(cpu.storages))) == 2


def test_autocast_halves_what_matrices_keep() -> None:
    def build() -> Workload:
        model = nn.Sequential(*[nn.Linear(256, 256, bias=False) for _ in range(3)])
        source = torch.randn(64, 256)

        def step() -> None:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(source).sum()
            loss.backward()

        return Workload(step, (model,), inputs=(source,))

    trace = dry.record(build, target="cuda")
    products = [trace.op(index).accesses for index in named(trace, "aten::mm")]
    assert [accesses[-1].bytes for accesses in products[:3]] == [64 * 256 * 2] * 3
    assert len(named(trace, "aten::_to_copy")) >= 4  # the batch and each weight, once


# ---- durations -----------------------------------------------------------------------------------------------------


def test_durations_follow_the_roofline() -> None:
    device = catalogue.load_device("v100-sxm2-power9-16gb")
    trace = dry.record(lambda: linear(4096, 4096), device=device)
    product = trace.op(named(trace, "aten::mm")[0])
    assert product.op_class == OpClass.MATMUL
    floor_ns = product.flops / device.peak("fp32") * 1e9
    assert product.duration_ns >= floor_ns
    assert product.duration_ns < 3 * floor_ns
    assert trace.device == device.name
    untimed = dry.record(linear, target="cuda")
    assert set(untimed.ops.duration_ns.tolist()) == {UNKNOWN}


# ---- anchors -------------------------------------------------------------------------------------------------------


def test_resnet50_keeps_85_mb_of_activations_an_image(networks: dict[str, Callable[..., Workload]]) -> None:
    small, large = (dry.record(lambda b=batch: networks["resnet50"](b), target="cuda") for batch in (8, 16))

    def kept_bytes(trace: Trace) -> int:
        """Intermediates that are alive when backward begins."""
        first = int(np.flatnonzero(trace.ops.phase == Phase.BACKWARD)[0])
        alive = (trace.births >= 0) & (trace.births < first) & (trace.deaths >= first)
        return int(trace.storages.bytes[alive & (trace.storages.role == Role.INTERMEDIATE)].sum())

    an_image = (kept_bytes(large) - kept_bytes(small)) / 8
    assert an_image == pytest.approx(85e6, rel=0.03)


@pytest.mark.parametrize(("batch", "gigabytes"), [(64, 5.76), (190, 16.69), (256, 22.41)])
def test_resnet50_peak(networks: dict[str, Callable[..., Workload]], batch: int, gigabytes: float) -> None:
    peak = dry.record(lambda: networks["resnet50"](batch), target="cuda").peak_bytes
    assert peak == pytest.approx(gigabytes * GB, rel=0.005)
    assert (peak <= 16 * GIB) == (batch <= 190)


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.parametrize(("batch", "gigabytes"), [(16, 17.7), (32, 31.4)])
def test_bert_large_peak(networks: dict[str, Callable[..., Workload]], batch: int, gigabytes: float) -> None:
    """The figures are of torch's unfused dropout; a GPU's kernel keeps a mask of bytes and needs less."""
    cpu = dry.record(lambda: networks["bert_large"](batch, length=256), target="cpu").peak_bytes
    cuda = dry.record(lambda: networks["bert_large"](batch, length=256), target="cuda").peak_bytes
    assert cpu == pytest.approx(gigabytes * GB, rel=0.005)
    assert 0.85 * cpu < cuda < cpu
    assert (cuda <= 24 * GIB) == (batch == 16)


# ---- bad input -----------------------------------------------------------------------------------------------------


def test_a_step_that_reads_a_value() -> None:
    def build() -> Workload:
        source = torch.randn(4)
        return Workload(lambda: source.sum().item(), inputs=(source,))

    with pytest.raises(UsageError, match=r"without data: .*item"):
        dry.record(build)


@pytest.mark.parametrize("place", ["cuda", "cpu"])
def test_a_workload_that_names_a_device(place: str) -> None:
    def build() -> Workload:
        model = nn.Linear(2, 2).to(place)
        return training_step(model, torch.optim.SGD(model.parameters()), squares, torch.ones(1, 2))

    with pytest.raises(UsageError, match=r"cannot be built without data: .*default device"):
        dry.record(build)


def test_a_factory_s_own_error_is_its_own() -> None:
    def build() -> Workload:
        raise RuntimeError("no such size")

    with pytest.raises(RuntimeError, match="no such size"):
        dry.record(build)


def test_sparse_gradients_depend_on_values() -> None:
    def build() -> Workload:
        table = nn.Embedding(100, 8, sparse=True)
        places = torch.ones(4, dtype=torch.long)
        return Workload(lambda: table(places).sum().backward(), (table,), inputs=(places,))

    with pytest.raises(UsageError, match=r"layout torch.sparse_coo.*umadvise run --record"):
        dry.record(build)


def test_no_workload() -> None:
    with pytest.raises(UsageError, match="returned a int"):
        dry.record(lambda: 3)  # type: ignore[arg-type, return-value]


def test_an_unknown_target() -> None:
    with pytest.raises(UsageError, match="expected one of cpu, cuda"):
        dry.record(linear, target="tpu")  # type: ignore[arg-type]


def test_nothing_is_left_behind() -> None:
    dry.record(attention, target="cuda")
    x = torch.ones(2, 2, device="meta", requires_grad=True)
    assert torch.dropout(x, 0.5, True).grad_fn.name() == "MulBackward0"  # torch's own again
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x).dtype is torch.float32
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16
    assert torch.ones(1).device.type == "cpu"


def test_events_free_what_the_op_scratched() -> None:
    trace = dry.record(convolution, target="cpu")
    scratch = trace.storages.role == Role.WORKSPACE
    assert scratch.any()
    assert (trace.births[scratch] == trace.deaths[scratch]).all()
    inside = np.isin(trace.events.storage, np.flatnonzero(scratch))
    assert (trace.events.inside[inside] == 1).all()
    assert set(trace.events.kind[inside].tolist()) == {EventKind.ALLOCATE, EventKind.FREE}


def test_the_first_steps_make_the_optimizers_state() -> None:
    """Two steps of Adam on one weight: both its states come in the first one and stay; a gradient comes in each."""
    both = dry.record(adam, target="cpu", from_first=2)
    steady = dry.record(adam, target="cpu")
    assert len(both.ops) > 2 * len(steady.ops)
    made = both.births >= 0
    state = made & (both.storages.role == Role.OPTIMIZER_STATE) & (both.storages.bytes == 64 * 64 * 4)
    assert int(state.sum()) == 2
    assert (both.births[state] < len(both.ops) // 2).all()
    assert (both.deaths[state] == len(both.ops)).all()
    gradients = made & (both.storages.role == Role.GRADIENT)
    assert int(gradients.sum()) == 2
    assert both.peak_bytes == steady.peak_bytes
