"""Marked regions on the emulated device: their ops are those of the recorded step, by index and name."""

from collections import Counter

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import umadvise
from umadvise.records.enums import Phase
from umadvise.records.trace import Trace
from umadvise.torch_seam import runtime
from umadvise.training.recompute.choice import RerunChoice
from umadvise.training.recompute.regions import Regions


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = (nn.TransformerEncoderLayer(32, 4, 64, batch_first=True) for _ in range(2))
        self.layers = nn.ModuleList([*layers, nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.GELU())])

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            words = checkpoint(layer, words * 2, use_reentrant=False)
        return words.square().mean()


def names(trace: Trace) -> list[str]:
    return [trace.strings[name] for name in trace.ops.name.tolist()]


def test_ops_of_regions_in_a_recorded_step() -> None:
    torch.manual_seed(3)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with umadvise.session(net, optimizer, device="emulated", capacity="64MiB", policy="advise", record=True) as um:
        state = runtime.current()
        regions = Regions(lambda: state.device.counters().op_count)
        regions.install(state.replaced)
        for step in range(4):
            with um.step():
                regions.begin_step(record=step == 2)
                net(um.to_device(torch.randn(4, 8, 32))).backward()
                optimizer.step()
                optimizer.zero_grad()
            if step == 2:
                by_region = {each.place: frozenset(range(len(each.operators))) for each in regions.recorded}
                regions.run_again(RerunChoice(by_region, frozenset()))
        recorded, driven = um.trace(step=3), um.trace(step=4)
    assert len(regions.recorded) == 3
    for region in regions.recorded:
        begin = region.first_op
        assert names(recorded)[begin : begin + len(region.operators)] == list(region.operators)
        assert names(driven)[begin : begin + len(region.operators)] == list(region.operators)
    again = Counter(names(driven)) - Counter(names(recorded))
    may_run = Counter(
        name
        for region in regions.recorded
        for name, repeatable in zip(region.operators, region.repeatable, strict=True)
        if repeatable
    )
    assert again["aten::native_layer_norm"] == 5
    assert again <= may_run
    assert (driven.ops.phase == Phase.FORWARD).sum() == (recorded.ops.phase == Phase.FORWARD).sum()
