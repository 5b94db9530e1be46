"""What test_refused.py runs: batches that are halved until a step fits, in plain torch and in a session.

`python refused.py POLICY` prints the batches' rows and what was trained, as JSON; `python refused.py plain ROWS` the
same of plain torch that begins with the batch that fits.
"""

import json
import sys
from typing import Any

import torch
from torch import nn

import umadvise

MIB = 1 << 20
BUDGET_BYTES, ROWS, STEPS = 24 * MIB, 16384, 3


class Training:
    """Statistics and dropout come before the op that is refused."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [nn.BatchNorm1d(64), nn.Dropout(0.3), nn.Linear(64, 512), nn.BatchNorm1d(512), nn.Linear(512, 1)]
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)

    def step(self, rows: int) -> None:
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(rows, 64, generator=generator).to("cuda")
        self.model(x).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def found(self) -> list[str]:
        return [each.double().sum().item().hex() for each in self.model.state_dict().values()]


def halved(policy: str) -> dict[str, Any]:
    training, rows, messages = Training(), [ROWS], []
    with umadvise.session(
        training.model, training.optimizer, device="cuda", budget=BUDGET_BYTES, policy=policy
    ) as session:
        torch.cuda.manual_seed(2)
        done = 0
        while done < STEPS:
            try:
                with session.step():
                    training.step(rows[-1])
                done += 1
            except torch.OutOfMemoryError as error:
                messages.append(str(error))
                rows.append(rows[-1] // 2)
        return {"rows": rows, "messages": messages, "found": training.found()}


def plain(rows: str) -> dict[str, Any]:
    training = Training()
    training.model.to("cuda")
    torch.cuda.manual_seed(2)
    for _ in range(STEPS):
        training.step(int(rows))
    return {"found": training.found()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    outcome = plain(sys.argv[2]) if sys.argv[1] == "plain" else halved(sys.argv[1])
    sys.stdout.write(json.dumps(outcome) + "\n")
