"""Trains on a device: `over_budget.py DEVICE [planted]`. Planted, it lifts its budget behind the session's back."""

import sys

import torch

import umadvise
from umadvise.torch_seam import runtime

device, *planted = sys.argv[1:]
model = torch.nn.Linear(2048, 2048)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
with umadvise.session(model, optimizer, device=device, budget="24MiB", policy="advise") as um:
    if planted:
        runtime.current().device.set_budget(0)
    for _ in range(2):
        with um.step():
            model(um.to_device(torch.randn(4, 2048))).mean().backward()
            optimizer.step()
sys.stdout.write("{}\n")
