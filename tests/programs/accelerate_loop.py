"""accelerate: a language model with accumulation, clipping, a schedule, a checkpoint and evaluations.

python accelerate_loop.py [bf16]
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from emulated_session import asked
from real_data import Passages
from telling import SHORT, tell, tell_state
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

VOCABULARY, LENGTH, BATCH, WIDTH, STEPS = 2000, 64, 8, 640, 6 if SHORT else 12


class LanguageModel(nn.Module):
    """Predicts each word from those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 10, 3 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1], device=words.device)
        return self.head(self.layers(self.words(words), mask=mask, is_causal=True))


def loss_of(model: nn.Module, words: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(words)[:, :-1].flatten(0, 1), words[:, 1:].flatten())


@contextmanager
def accumulating(accelerator: Accelerator, model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Any]:
    """accelerate's own `accumulate`, or that of a session, where one is asked for."""
    if not asked():
        yield accelerator.accumulate
        return
    from umadvise.integrations.accelerate import AcceleratedSession

    with AcceleratedSession(accelerator, model, optimizer, **asked()) as um:
        yield um.accumulate
        um.report(os.environ["PROFILE"])


def main() -> None:
    set_seed(2)
    precision = "bf16" if "bf16" in sys.argv[1:] else "no"
    accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision=precision)
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=STEPS)
    passages = Passages(BATCH * STEPS, LENGTH, VOCABULARY)
    model, optimizer, loader, schedule = accelerator.prepare(
        model, optimizer, DataLoader(passages, batch_size=BATCH, shuffle=True), schedule
    )
    unseen = accelerator.prepare(DataLoader(Passages(2 * BATCH, LENGTH, VOCABULARY, first=900), batch_size=BATCH))
    tell("begin")
    with tempfile.TemporaryDirectory() as folder, accumulating(accelerator, model, optimizer) as accumulate:
        for epoch in range(2):
            model.train()
            for batch in loader:
                with accumulate(model):
                    loss = loss_of(model, batch["input_ids"])
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        tell("norm", accelerator.clip_grad_norm_(model.parameters(), 1.0))
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
                    tell("loss", loss)
            model.eval()
            with torch.no_grad():
                found = [accelerator.gather_for_metrics(loss_of(model, each["input_ids"])) for each in unseen]
            tell("evaluation", torch.stack(found).mean())
            if epoch == 0:
                accelerator.save_state(folder)
        tell_state(accelerator.unwrap_model(model), optimizer.optimizer)
        accelerator.load_state(folder)
    tell_state(accelerator.unwrap_model(model), optimizer.optimizer)


if __name__ == "__main__":
    main()
