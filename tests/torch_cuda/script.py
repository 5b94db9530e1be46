"""A script as somebody wrote it for a GPU: it knows nothing of umadvise, and prints its losses as JSON.

With a word it ends early: "raises", "exits", or in the middle of a step of a session of its own, "in a session".
"""

import json
import sys

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(11)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(900, 900), nn.GELU(), nn.Linear(900, 900), nn.GELU(), nn.Linear(900, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
scaler = torch.amp.GradScaler()
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
labels = (torch.arange(64) % 10).pin_memory().cuda(non_blocking=True)
losses = []
for step in range(6):
    if step == 3 and sys.argv[1:] == ["raises"]:
        raise KeyError("the script's own")
    if step == 3 and sys.argv[1:] == ["exits"]:
        sys.exit(5)
    inputs = torch.randn(64, 900).to(device, non_blocking=True)
    with torch.autocast("cuda", torch.bfloat16):
        loss = functional.cross_entropy(model(inputs), labels)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    optimizer.zero_grad(set_to_none=True)
    losses.append(loss.item().hex())
print(json.dumps({"losses": losses, "sum": model.state_dict()["0.weight"].double().sum().item().hex()}))
