"""gpytorch: exact regression by a Gaussian process, through Cholesky factors, in double precision."""

import gpytorch
import torch
from gpytorch.likelihoods import GaussianLikelihood
from real_data import digits
from telling import SHORT, tell, tell_state

POINTS, STEPS = 700, 3 if SHORT else 6
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Process(gpytorch.models.ExactGP):
    """How large a digit is, from its picture."""

    def __init__(
        self, inputs: torch.Tensor, targets: torch.Tensor, likelihood: gpytorch.likelihoods.Likelihood
    ) -> None:
        super().__init__(inputs, targets, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(2.5, ard_num_dims=64))

    def forward(self, inputs: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(inputs), self.covar_module(inputs))


def main() -> None:
    torch.manual_seed(10)
    pictures, labels = digits()
    flat, values = pictures.flatten(1).double().to(DEVICE), labels.double().to(DEVICE)
    likelihood = GaussianLikelihood()
    model = Process(flat[:POINTS], values[:POINTS], likelihood).double().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    tell("begin")
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = -marginal(model(flat[:POINTS]), values[:POINTS])
        loss.backward()
        optimizer.step()
        tell("loss", loss)
    model.eval()
    with torch.no_grad():
        expected = likelihood(model(flat[POINTS : POINTS + 100]))
    tell("mean", expected.mean)
    tell("variance", expected.variance)
    tell_state(model, optimizer)


if __name__ == "__main__":
    main()
