"""torch's DataLoader with workers that persist, prefetch, pin and augment, and its samplers."""

import torch
from real_data import enlarged_digits
from telling import SHORT, tell, tell_state
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

SIDE, BATCH, EPOCHS = 32, 64, 2 if SHORT else 3
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Shifted(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Digits, each moved at random: in a worker, whose generator the loader seeds."""

    def __init__(self) -> None:
        self._pictures, self._labels = enlarged_digits(SIDE)

    def __len__(self) -> int:
        return 4 * BATCH + 1

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        by = torch.randint(-3, 4, (2,)).tolist()
        return self._pictures[index].roll(by, (1, 2)), self._labels[index]


def network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.SiLU()),
        *(nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.GroupNorm(4, 64), nn.SiLU()),
        *(nn.Flatten(), nn.Linear(16 * SIDE * SIDE, 128), nn.SiLU(), nn.Linear(128, 10)),
    )


def main() -> None:
    torch.manual_seed(7)
    model = network().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = Shifted()
    sampler = WeightedRandomSampler(torch.linspace(1, 2, len(data)).tolist(), len(data))
    loader = DataLoader(
        data, BATCH, sampler=sampler, num_workers=2, persistent_workers=True, prefetch_factor=2, pin_memory=True
    )
    tell("begin")
    for _ in range(EPOCHS):
        for pictures, labels in loader:
            answers = model(pictures.to(DEVICE, non_blocking=True))
            loss = functional.cross_entropy(answers, labels.to(DEVICE, non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tell("loss", loss)
    tell_state(model, optimizer)


if __name__ == "__main__":
    main()
