"""opacus: a network trained with differential privacy, whose gradients are taken sample by sample."""

import warnings
from itertools import chain, pairwise

import torch
from opacus import PrivacyEngine
from real_data import enlarged_digits
from telling import SHORT, tell, tell_state
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

SIDE, BATCH, STEPS, WIDTH = 24, 16, 3 if SHORT else 8, 256
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main() -> None:
    warnings.simplefilter("ignore")  # opacus says that its generator is not a secure one
    torch.manual_seed(8)
    widths = [SIDE * SIDE, *[WIDTH] * 8]
    layers = [(nn.Linear(taken, given), nn.ReLU()) for taken, given in pairwise(widths)]
    model = nn.Sequential(nn.Flatten(), *chain.from_iterable(layers), nn.Linear(WIDTH, 10)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pictures, labels = enlarged_digits(SIDE, channels=1)
    count = BATCH * STEPS
    loader = DataLoader(TensorDataset(pictures[:count].contiguous(), labels[:count]), batch_size=BATCH)
    private, optimizer, loader = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
    )
    tell("begin")
    for inputs, wanted in loader:
        loss = functional.cross_entropy(private(inputs.to(DEVICE)), wanted.to(DEVICE))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        tell("loss", loss)
    tell_state(model)


if __name__ == "__main__":
    main()
