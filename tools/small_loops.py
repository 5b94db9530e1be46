"""Loops of small ops, or of small steps, that mark none: a step of theirs would take less time than its edge.

Each takes how often it comes round, and returns its numbers.
"""

from collections.abc import Callable

import torch
from torch import nn


def preparation(rounds: int) -> torch.Tensor:
    """Rows of a data set, each normalized by itself."""
    rows = []
    for _ in range(15 * rounds):
        row = torch.randn(64)
        rows.append(((row - row.mean()) / row.std()).clamp(-2, 2))
    return torch.stack(rows)


def environment(rounds: int) -> torch.Tensor:
    """A small system that is stepped, and asked for a reward each time."""
    state, rewards = torch.zeros(8), []
    for _ in range(15 * rounds):
        rewards.append(torch.tanh(state).sum().item())
        state = state * 0.9 + torch.randn(8) * 0.1
    return torch.tensor(rewards)


def k_means(rounds: int) -> torch.Tensor:
    """Ten means of 2,000 points."""
    points = torch.randn(2000, 16)
    means = points[:10].clone()
    for _ in range(rounds):
        nearest = torch.cdist(points, means).argmin(1)
        for mean in range(10):
            means[mean] = points[nearest == mean].mean(0)
    return means


def updates_by_hand(rounds: int) -> torch.Tensor:
    """One matrix that descends along its gradient."""
    weight = torch.randn(64, 64, requires_grad=True)
    for _ in range(3 * rounds):
        (gradient,) = torch.autograd.grad((weight @ weight).square().mean(), weight)
        with torch.no_grad():
            weight -= 0.01 * gradient
    return weight.detach()


def recurrent_cell(rounds: int) -> torch.Tensor:
    """Tokens of a small recurrent network, one by one."""
    cell, state = nn.GRUCell(32, 32), torch.zeros(1, 32)
    with torch.no_grad():
        for _ in range(10 * rounds):
            state = cell(torch.randn(1, 32), state)
    return state


def gaussian_mixture(rounds: int) -> torch.Tensor:
    """Expectation and maximization for five Gaussians."""
    points = torch.randn(1000, 4)
    means, variances, weights = points[:5].clone(), torch.ones(5, 4), torch.full((5,), 0.2)
    for _ in range(rounds):
        distances = (points[:, None] - means) ** 2 / variances
        scores = weights.log() - 0.5 * (distances + variances.log()).sum(-1)
        parts = torch.softmax(scores, 1)
        totals = parts.sum(0)
        means = parts.T @ points / totals[:, None]
        variances = parts.T @ points**2 / totals[:, None] - means**2 + 1e-6
        weights = totals / len(points)
    return means


def power_iteration(rounds: int) -> torch.Tensor:
    """The largest eigenvector of a matrix."""
    matrix, vector = torch.randn(128, 128), torch.randn(128)
    for _ in range(10 * rounds):
        vector = matrix @ vector
        vector = vector / vector.norm()
    return vector


def game_of_life(rounds: int) -> torch.Tensor:
    """A field of 64 by 64 cells."""
    field = (torch.rand(64, 64) < 0.3).float()
    kernel = torch.ones(1, 1, 3, 3)
    for _ in range(3 * rounds):
        alive = torch.conv2d(field[None, None], kernel, padding=1)[0, 0] - field
        field = ((alive == 3) | ((alive == 2) & (field == 1))).float()
    return field


def metropolis(rounds: int) -> torch.Tensor:
    """Samples of a distribution, by random steps that are taken or not."""
    place, samples = torch.zeros(4), []
    for _ in range(10 * rounds):
        proposed = place + 0.5 * torch.randn(4)
        if torch.rand(()) < torch.exp((place**2 - proposed**2).sum() / 2):
            place = proposed
        samples.append(place)
    return torch.stack(samples)


def rows_of_a_table(rounds: int) -> torch.Tensor:
    """Single rows, fetched out of a table of 8 MiB and added up."""
    table, total = torch.randn(4096, 512), torch.zeros(512)
    for index in torch.randint(4096, (15 * rounds,)).tolist():
        total += table[index]
    return total


def small_network(rounds: int) -> torch.Tensor:
    """Two layers without modules, trained by hand."""
    layers = [torch.randn(16, 32).requires_grad_(), torch.randn(32, 1).requires_grad_()]
    inputs, targets = torch.randn(64, 16), torch.randn(64, 1)
    for _ in range(2 * rounds):
        loss = (torch.tanh(inputs @ layers[0]) @ layers[1] - targets).square().mean()
        gradients = torch.autograd.grad(loss, layers)
        with torch.no_grad():
            for layer, gradient in zip(layers, gradients, strict=True):
                layer -= 0.01 * gradient
    return torch.cat([layer.detach().flatten() for layer in layers])


SMALL_LOOPS: tuple[Callable[[int], torch.Tensor], ...] = (
    preparation,
    environment,
    k_means,
    updates_by_hand,
    recurrent_cell,
    gaussian_mixture,
    power_iteration,
    game_of_life,
    metropolis,
    rows_of_a_table,
    small_network,
)
