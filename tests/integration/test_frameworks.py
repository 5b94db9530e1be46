"""Callbacks and sessions for frameworks: a training is the plain one, to the last bit; steps are the optimizer's.

Lightning and notebooks: tests/programs.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from small_networks import different
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

import umadvise
from umadvise.errors import PolicyError
from umadvise.integrations.accelerate import AcceleratedSession
from umadvise.integrations.transformers import UmadviseCallback
from umadvise.records.fault_profile import read
from umadvise.torch_seam import runtime

SWAPPING: dict[str, Any] = {"device": "emulated", "budget": "10MiB", "policy": "swap"}
"""Less than the parameters alone take."""


class Regression(nn.Module):
    """As Trainer wants it: a call returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(640, 640) for _ in range(7)))
        self.inputs_on_device: list[bool] = []

    def forward(self, pictures: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.inputs_on_device.append(umadvise.on_device(pictures))
        answers = self.layers(pictures).mean(1)
        return {"loss": (answers - labels).square().mean(), "answers": answers}


def trainer_of(folder: Path, *callbacks: TrainerCallback) -> Trainer:
    """Six steps of two micro-batches in bfloat16, with an evaluation and a checkpoint after the third."""
    torch.manual_seed(2)
    rows = [{"pictures": torch.randn(640), "labels": torch.randn(())} for _ in range(8)]
    arguments = TrainingArguments(
        str(folder),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=6,
        eval_strategy="steps",
        eval_steps=3,
        save_steps=3,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        bf16=True,
    )
    return Trainer(Regression(), arguments, train_dataset=rows, eval_dataset=rows[:4], callbacks=list(callbacks))


def left(trainer: Trainer) -> dict[str, torch.Tensor]:
    moments = {str(number): each["exp_avg"] for number, each in enumerate(trainer.optimizer.state.values())}
    return {**trainer.model.state_dict(), **moments}


def test_trainer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The resumed training loads what the first one has saved, all of it inside of sessions."""
    profile = tmp_path / "profile.json"
    callback = UmadviseCallback(profile=profile, **SWAPPING)
    plain, ours = trainer_of(tmp_path / "plain"), trainer_of(tmp_path / "ours", callback)
    for trainer in (plain, ours):
        trainer.train()
    assert read(profile).step_count == 6
    assert different(left(ours), left(plain)) == []
    resumed = trainer_of(tmp_path / "resumed", callback)
    resumed.train(resume_from_checkpoint=str(tmp_path / "ours" / "checkpoint-3"))
    assert different(left(resumed), left(plain)) == []
    assert "Per step" in capsys.readouterr().out
    found = read(profile)
    assert found.step_count == 3
    assert found.swaps is not None
    assert found.swaps.swap_in_bytes > 0
    assert all(resumed.model.inputs_on_device)
    assert not runtime.is_patched()


class Failing(TrainerCallback):
    """Ends a training in the middle of its second step."""

    def on_substep_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:  # noqa: ARG002
        if state.global_step == 1:
            raise KeyboardInterrupt


def test_a_training_that_raised(tmp_path: Path) -> None:
    callback = UmadviseCallback(**SWAPPING)
    trainer = trainer_of(tmp_path, callback, Failing())
    for close in (callback.close, lambda: None):  # what is left open is closed by the next training, too
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        assert runtime.is_patched()
        close()
    assert runtime.is_patched()
    trainer.remove_callback(Failing)
    trainer.train()
    assert not runtime.is_patched()
    assert callback.session is not None
    assert callback.session.profile().step_count == 6


def test_options_are_checked_at_once() -> None:
    with pytest.raises(PolicyError, match="hope"):
        UmadviseCallback(policy="hope")


def accelerated(open_session: Callable[..., Any] | None) -> tuple[dict[str, torch.Tensor], int]:
    """Five batches in steps of two: what is left, and how many steps the session has seen."""
    torch.manual_seed(5)
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    model = nn.Sequential(*(nn.Linear(640, 640) for _ in range(7)))
    batches = torch.utils.data.DataLoader(torch.randn(20, 640), batch_size=4)
    model, optimizer, batches = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), batches)

    def train(accumulate: Callable[..., Any]) -> None:
        for batch in batches:
            with accumulate(model):
                accelerator.backward(model(batch).square().mean())
                optimizer.step()
                optimizer.zero_grad()

    if open_session is None:
        train(accelerator.accumulate)
        return dict(model.state_dict()), 3
    with open_session(accelerator, model, optimizer, **SWAPPING) as um:
        train(um.accumulate)
        with pytest.raises(ZeroDivisionError), um.accumulate(model):
            1 / 0  # noqa: B018
    return dict(model.state_dict()), um.profile().step_count


def test_accelerate() -> None:
    plain, ours = accelerated(None), accelerated(AcceleratedSession)
    assert different(ours[0], plain[0]) == []
    assert ours[1] == plain[1] + 1
