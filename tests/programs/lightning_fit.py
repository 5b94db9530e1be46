"""Lightning: a convolutional network is fitted and validated, resumed from its checkpoint, and asked.

python lightning_fit.py [bf16]: in bfloat16, with accumulated gradients
"""

import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch
from emulated_session import asked
from real_data import enlarged_digits
from telling import SHORT, tell, tell_state
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

BF16 = "bf16" in sys.argv[1:]
SIDE, BATCH, STEPS = 24, 32, 4 if SHORT else 8
warnings.filterwarnings("ignore", module="pytorch_lightning")


class Digits(lightning.LightningModule):
    """A small network, as Lightning wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
            *(nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
            *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * (SIDE // 4) ** 2, 512), nn.ReLU(), nn.Dropout(0.1)),
            *(part for _ in range(10) for part in (nn.Linear(512, 512), nn.ReLU())),
            nn.Linear(512, 10),
        )
        self.accuracy = MulticlassAccuracy(10)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.network(pictures)

    def training_step(self, batch: Any, _index: int) -> torch.Tensor:
        pictures, labels = batch
        loss = functional.cross_entropy(self(pictures), labels)
        tell("loss", loss)
        self.log("training", loss)
        return loss

    def validation_step(self, batch: Any, _index: int) -> None:
        pictures, labels = batch
        answers = self(pictures)
        self.accuracy(answers, labels)
        self.log("accuracy", self.accuracy, on_epoch=True)
        self.log("validation", functional.cross_entropy(answers, labels), on_epoch=True)

    def predict_step(self, batch: Any, _index: int) -> torch.Tensor:
        return self(batch[0]).argmax(1)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)}


def trainer_of(folder: str, epochs: int) -> lightning.Trainer:
    return lightning.Trainer(
        max_epochs=epochs,
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
        num_sanity_val_steps=1,
        callbacks=callbacks(),
        precision="bf16-mixed" if BF16 else "32-true",
        accumulate_grad_batches=2 if BF16 else 1,
    )


def callbacks() -> list[lightning.Callback]:
    """Ours, where a session is asked for."""
    if not asked():
        return []
    from umadvise.integrations.lightning import LightningCallback

    return [LightningCallback(profile=os.environ["PROFILE"], **asked())]


def told(trainer: lightning.Trainer) -> None:
    for name, value in sorted(trainer.callback_metrics.items()):
        tell(name, value)


def main() -> None:
    lightning.seed_everything(3)
    pictures, labels = enlarged_digits(SIDE, channels=1)
    seen, unseen = BATCH * STEPS, slice(-2 * BATCH, None)
    training = DataLoader(TensorDataset(pictures[:seen], labels[:seen]), batch_size=BATCH, shuffle=True)
    validation = DataLoader(TensorDataset(pictures[unseen], labels[unseen]), batch_size=BATCH)
    with tempfile.TemporaryDirectory() as folder:
        tell("begin")
        module, trainer = Digits(), trainer_of(folder, 2)
        trainer.fit(module, training, validation)
        told(trainer)
        tell_state(module, trainer.optimizers[0])
        resumed, trainer = Digits(), trainer_of(folder, 3)
        trainer.fit(resumed, training, validation, ckpt_path=next(Path(folder).rglob("*.ckpt")))
        told(trainer)
        tell_state(resumed, trainer.optimizers[0])
        trainer.validate(resumed, validation, verbose=False)
        told(trainer)
        tell("predicted", torch.cat(trainer.predict(resumed, validation)))


if __name__ == "__main__":
    main()
