"""The networks have the published numbers of parameters, and each runs a step at its paper's size and at a tiny one."""

import random
from collections.abc import Callable

import pytest
import torch
from networks import NETWORKS

from umadvise.recording.workload import Workload

pytestmark = pytest.mark.long

# From the docstrings' sources: torchvision's documentation, the papers' own tables, sums over the papers' layers.
PUBLISHED = {
    "alexnet": 61_100_840,
    "overfeat": 145_920_872,
    "vgg16": 138_357_544,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "densenet121": 7_978_856,
    "vit_b16": 86_567_656,
    "gpt2": 124_439_808,
    "bert_large": 335_174_458,
    "kmeans": 0,
}

# Small enough for any machine, large enough for every pooling and every unpadded convolution.
TINY: dict[str, dict[str, object]] = {
    "alexnet": {"image": 63, "width": 4, "classes": 10},
    "overfeat": {"image": 87, "width": 4, "classes": 10},
    "vgg16": {"image": 32, "width": 4, "classes": 10},
    **{f"vgg{layers}16": {"image": 32, "width": 4, "classes": 10, "added": layers} for layers in range(1, 6)},
    **{name: {"image": 64, "width": 4, "layers": (1, 1, 1, 1)} for name in ("resnet50", "resnet101", "resnet152")},
    "stochastic_depth_resnet": {"image": 16, "width": 4, "blocks": 2},
    "densenet121": {"image": 64, "growth": 4, "blocks": (1, 2, 1, 1)},
    "unet": {"image": 28, "width": 4, "levels": 1},
    "pix2pixhd": {"image": (32, 64), "width": 4, "blocks": 1},
    "deeplabv3plus": {"image": 33, "width": 4, "middle_blocks": 1},
    "char_lstm": {"length": 5, "hidden": 8, "characters": 7},
    "kmeans": {"dimensions": 3, "clusters": 4},
    "bert_large": {"length": 8, "layers": 2, "hidden": 16, "heads": 2, "vocabulary": 50},
    "gpt2": {"length": 8, "layers": 2, "width": 16, "heads": 2, "vocabulary": 50},
    "vit_b16": {"image": 32, "width": 16, "heads": 2, "layers": 2, "classes": 10},
}

EVERY = pytest.mark.parametrize("name", NETWORKS)


@pytest.fixture(scope="module")
def on_meta() -> Callable[[str], Workload]:
    """Builds each network once at its paper's size, without memory for data."""
    built: dict[str, Workload] = {}

    def build(name: str) -> Workload:
        if name not in built:
            with torch.device("meta"):
                built[name] = NETWORKS[name]()
        return built[name]

    return build


def parameters(*modules: torch.nn.Module) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_as_many_as_published(name: str, on_meta: Callable[[str], Workload]) -> None:
    assert parameters(*on_meta(name).modules) == PUBLISHED[name]


@pytest.mark.parametrize("hundreds", range(1, 6))
def test_deep_vgg_has_twenty_more_convolutions_in_each_group(hundreds: int, on_meta: Callable[[str], Workload]) -> None:
    each_group_once = sum(9 * maps * maps + maps for maps in (64, 128, 256, 512, 512))
    expected = PUBLISHED["vgg16"] + 20 * hundreds * each_group_once
    (model,) = on_meta(f"vgg{hundreds}16").modules
    assert parameters(model) == expected
    assert sum(isinstance(layer, torch.nn.Conv2d) for layer in model.modules()) == 13 + 100 * hundreds


def test_resnet_110_of_cifar_has_a_count_that_follows_from_its_table(on_meta: Callable[[str], Workload]) -> None:
    # He et al. 2016, table 6 (1.7 M): a stem, then 36 convolutions a stage, each with a batch norm, and one full layer.
    stages = sum(35 * (9 * maps * maps + 2 * maps) for maps in (16, 32, 64))
    first_of_a_stage = sum(9 * before * maps + 2 * maps for before, maps in ((16, 16), (16, 32), (32, 64)))
    expected = (9 * 3 * 16 + 2 * 16) + stages + first_of_a_stage + (64 * 10 + 10)
    assert parameters(*on_meta("stochastic_depth_resnet").modules) == expected == 1_727_962


def test_unet_has_a_count_that_follows_from_its_figure(on_meta: Callable[[str], Workload]) -> None:
    # Ronneberger et al. 2015, figure 1: the channels written over its blocks, two convolutions of 3 x 3 each.
    pairs = [(1, 64), (64, 128), (128, 256), (256, 512), (512, 1024)]
    pairs += [(1024, 512), (512, 256), (256, 128), (128, 64)]
    convolutions = sum(9 * (before * maps + maps * maps) + 2 * maps for before, maps in pairs)
    up_convolutions = sum(4 * 2 * maps * maps + maps for maps in (512, 256, 128, 64))
    workload = on_meta("unet")
    assert parameters(*workload.modules) == convolutions + up_convolutions + (64 * 2 + 2)
    assert workload.inputs[1].shape[1:] == (388, 388)  # the figure's output


def test_pix2pixhd_has_a_count_that_follows_from_its_appendix(on_meta: Callable[[str], Workload]) -> None:
    # Wang et al. 2018, appendix A.2: c7s1-64, d128 to d1024, nine R1024, u512 to u64, c7s1-3; C64 to C512 twice.
    down = [(64, 128), (128, 256), (256, 512), (512, 1024)]
    ends = (49 * 36 * 64 + 64) + (49 * 64 * 3 + 3)
    residual = 9 * 2 * (9 * 1024 * 1024 + 1024)
    generator = ends + residual + sum(9 * 2 * few * many + few + many for few, many in down)
    patch = [(39, 64), (64, 128), (128, 256), (256, 512), (512, 1)]
    discriminators = 2 * sum(16 * before * maps + maps for before, maps in patch)
    modules = on_meta("pix2pixhd").modules
    assert [parameters(module) for module in modules[:2]] == [generator, discriminators]
    assert not any(parameter.requires_grad for parameter in modules[2].parameters())


def test_deeplab_has_the_count_of_the_converted_checkpoint(on_meta: Callable[[str], Workload]) -> None:
    (model,) = on_meta("deeplabv3plus").modules
    statistics = sum(2 * norm.num_features for norm in model.modules() if isinstance(norm, torch.nn.BatchNorm2d))
    assert parameters(model) + statistics == 41_258_213


def test_char_lstm_has_a_count_that_follows_from_its_gates(on_meta: Callable[[str], Workload]) -> None:
    layers = sum(4 * 128 * (before + 128 + 2) for before in (65, 128))
    assert parameters(*on_meta("char_lstm").modules) == layers + 129 * 65


@EVERY
def test_a_step_at_the_papers_size_reads_no_value(name: str, on_meta: Callable[[str], Workload]) -> None:
    workload = on_meta(name)
    result = workload.step()  # outside the device's context: a step makes no tensor on a default device
    assert isinstance(result, torch.Tensor)
    assert result.device.type == "meta"
    trained = [parameter for module in workload.modules for parameter in module.parameters() if parameter.requires_grad]
    optimized = [
        each for optimizer in workload.optimizers for group in optimizer.param_groups for each in group["params"]
    ]
    assert set(map(id, trained)) == set(map(id, optimized))
    assert all(tensor.device.type == "meta" for tensor in workload.inputs)


@EVERY
def test_a_tiny_step_has_a_finite_loss_and_moves_the_model(name: str) -> None:
    torch.manual_seed(0)
    workload = NETWORKS[name](2 if name != "kmeans" else 40, **TINY[name])
    state = [tensor for module in workload.modules for tensor in module.state_dict().values()]
    before = [tensor.clone() for tensor in state]
    losses = [workload.step() for _ in range(2)]
    assert all(isinstance(loss, torch.Tensor) and loss.isfinite() and not loss.requires_grad for loss in losses)
    assert not all(torch.equal(tensor, old) for tensor, old in zip(state, before, strict=True))
    assert all(tensor.isfinite().all() for tensor in state)
    assert workload.name == name


def test_stochastic_depth_draws_its_blocks_from_the_seed() -> None:
    def convolutions_run(seed: int) -> list[int]:
        workload = NETWORKS["stochastic_depth_resnet"](2, image=16, width=4, blocks=6, seed=seed)
        calls: list[torch.nn.Module] = []
        for layer in workload.modules[0].modules():
            if isinstance(layer, torch.nn.Conv2d):
                layer.register_forward_hook(lambda layer, *_: calls.append(layer))
        counts = []
        for _ in range(4):
            workload.step()
            counts.append(len(calls))
            calls.clear()
        return counts

    # Huang et al. 2016, section 3: block l of 18 survives with 1 - l / 18 / 2; a block has two convolutions.
    generator = random.Random(3)
    expected = [1 + 2 * sum(generator.random() < 1 - block / 36 for block in range(1, 19)) for _ in range(4)]
    assert convolutions_run(3) == expected
    assert len(set(expected)) > 1


def test_kmeans_moves_each_centroid_to_the_mean_of_its_nearest_points() -> None:
    torch.manual_seed(0)
    workload = NETWORKS["kmeans"](30, dimensions=2, clusters=4)
    (points,) = workload.inputs
    centroids = workload.modules[0].get_buffer("centroids")
    centroids[3] = 100.0  # nobody's nearest
    old = centroids.tolist()
    nearest = [
        min(range(4), key=lambda cluster: (x - old[cluster][0]) ** 2 + (y - old[cluster][1]) ** 2)
        for x, y in points.tolist()
    ]
    workload.step()
    for cluster in range(3):
        mean = points[[index for index, label in enumerate(nearest) if label == cluster]].mean(0)
        torch.testing.assert_close(centroids[cluster], mean)
    assert centroids[3].tolist() == old[3]
