"""K-means, the one workload of the DQN paper that is no network (section 5, on random data of NVIDIA's kmeans)."""

import torch
from torch import nn

from umadvise.recording.workload import Workload


class _KMeans(nn.Module):
    """Lloyd's iteration; what it learns is the buffer `centroids`."""

    centroids: torch.Tensor

    def __init__(self, clusters: int, dimensions: int) -> None:
        super().__init__()
        self.register_buffer("centroids", torch.rand(clusters, dimensions, dtype=torch.float64))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        """Moves each centroid to the mean of its points; returns the sum of squared distances before the move."""
        squares = points.square().sum(1, keepdim=True)
        distances = torch.addmm(squares, points, self.centroids.T, alpha=-2) + self.centroids.square().sum(1)
        nearest, labels = distances.min(1)
        sums = torch.zeros_like(self.centroids).index_add_(0, labels, points)
        counts = torch.zeros_like(self.centroids[:, :1]).index_add_(0, labels, torch.ones_like(squares))
        # A cluster without points stays where it is.
        self.centroids.copy_(torch.where(counts > 0, sums / counts.clamp(min=1), self.centroids))
        return nearest.sum()


def kmeans(batch: int = 1_000_000, *, dimensions: int = 50, clusters: int = 100) -> Workload:
    """One iteration over a million random points of 50 float64 in 100 clusters: the large test of NVIDIA's kmeans.

    No parameters; the centroids are 5,000 numbers.

    Args:
        batch: number of points.
        dimensions: coordinates of each point.
        clusters: number of clusters, each with a centroid.
    """
    model = _KMeans(clusters, dimensions)
    points = torch.rand(batch, dimensions, dtype=torch.float64)

    def step() -> torch.Tensor:
        with torch.no_grad():
            distance: torch.Tensor = model(points)
            return distance

    return Workload(step, (model,), (), (points,), "kmeans")
