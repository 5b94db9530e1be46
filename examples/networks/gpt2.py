"""GPT-2, the smallest of Radford et al. 2019 (section 2.3 and table 2)."""

import torch
from torch import nn

from networks.transformer import DROPOUT, PreNormLayer
from umadvise.recording.workload import Workload, training_step


class _GPT2(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        self.decoder = nn.Sequential(
            nn.Dropout(DROPOUT),
            *(PreNormLayer(width, heads, causal=True, gelu="tanh", epsilon=1e-5) for _ in range(layers)),
            nn.LayerNorm(width),
        )
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        features = self.decoder(self.tokens(text) + self.positions)
        return nn.functional.linear(features, self.tokens.weight)  # the output embedding is the input's


def _loss(model: nn.Module, text: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(text).flatten(0, 1), following.flatten())


def gpt2(
    batch: int = 8,
    *,
    length: int = 1024,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    vocabulary: int = 50257,
) -> Workload:
    """GPT-2 on 1024 tokens, with AdamW; the paper's batch of 512 takes many devices.

    124,439,808 parameters, with the output embedding tied to the input's: those of the published checkpoint. Table 2
    says 117 million, which its authors have since corrected to 124.

    Args:
        batch: sequences a step.
        length: tokens of a sequence.
        layers: number of layers of the decoder.
        width: size of a token, a multiple of `heads`.
        heads: number of heads of each attention.
        vocabulary: tokens that exist.
    """
    model = _GPT2(vocabulary, length, width, heads, layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    text = torch.randint(vocabulary, (batch, length))
    following = torch.randint(vocabulary, (batch, length))
    return training_step(model, optimizer, _loss, text, following, name="gpt2")
