"""The step of vDNN's prototype, by hand for a small network, and what its policies make of AlexNet."""

import numpy as np
import pytest
import torch
from replay import published, vdnn
from replay.outcome import Verdict
from replay.vdnn_step import vdnn_step
from torch import nn

from umadvise.devices.catalogue import load_device
from umadvise.planners.papers.convolution import tiled_fft_bytes, workspace_bytes
from umadvise.recording.workload import Workload, training_step

K40 = load_device("k40")


def small_network() -> Workload:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 20 * 20, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return training_step(model, optimizer, lambda net, images: net(images).sum(), torch.zeros(2, 3, 40, 40))


def test_a_step_by_hand() -> None:
    step = vdnn_step(small_network, K40)
    image, convolution, pooling = 4 * 2 * 3 * 1600, 4 * 2 * 8 * 1600, 4 * 2 * 8 * 400
    weights, full = 4 * 3 * 8 * 9, 4 * 3200 * 10
    assert step.classifier_weight_bytes == 2 * full
    # The most is in pooling's backward: its X, Y, dX and dY, and the image.
    assert step.trace.peak_bytes == image + 2 * convolution + 2 * pooling + weights + 2 * full
    names = [step.trace.op(op).module for op in range(len(step.trace.ops))]
    assert names == ["0", "1", "2", "3", "3", "3", "2", "1", "0"]  # the loss is that of the last layer
    assert step.classifier_ns == int(step.trace.ops.duration_ns[3:6].sum())
    # Forward and back take the same workspace; backward of the first layer makes dW alone.
    workspace = np.zeros(9, np.int64)
    workspace[[0, 8]] = tiled_fft_bytes(2, 3, 8, 40, 3)
    assert workspace_bytes(step.trace).tolist() == workspace.tolist()
    assert step.trace.ops.flops[8] == step.trace.ops.flops[0] == 2 * 2 * 8 * 1600 * 27


@pytest.mark.parametrize("policy", ["all_memory_optimal", "dyn"])
def test_what_fits_moves_only_where_the_policy_always_does(policy: str) -> None:
    """AlexNet's 1.1 GB are nothing to a K40: `dyn` copies nothing and loses nothing."""
    figures = [figure for figure in published.read() if figure.table == "vdnn"]
    memory = next(figure for figure in figures if figure.key[:1] == ("alexnet",) and figure.key[2] == "dyn")
    run = vdnn._run("alexnet", 128, policy)
    assert (run.offloaded_gib > 0) == (policy != "dyn")
    assert (run.throughput == pytest.approx(100)) == (policy == "dyn")
    outcomes = list(vdnn.replay([memory]))
    assert [outcome.status for outcome in outcomes] == [Verdict.PASS]
