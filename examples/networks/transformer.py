"""The layer that ViT and GPT-2 share: attention and a perceptron, each behind a layer norm and around a shortcut."""

import torch
from torch import nn

DROPOUT = 0.1


class PreNormLayer(nn.Module):
    """A layer whose norms come first; its attention is torch's fused one, which users run today."""

    def __init__(self, width: int, heads: int, *, causal: bool, gelu: str, epsilon: float) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.norm1 = nn.LayerNorm(width, eps=epsilon)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Sequential(nn.Linear(width, width), nn.Dropout(DROPOUT))
        self.norm2 = nn.LayerNorm(width, eps=epsilon)
        self.perceptron = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(gelu), nn.Linear(4 * width, width), nn.Dropout(DROPOUT)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Maps tokens of shape batch x length x width to tokens of the same shape."""
        batch, length, width = tokens.shape
        parts = self.query_key_value(self.norm1(tokens)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        tokens = tokens + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        output: torch.Tensor = tokens + self.perceptron(self.norm2(tokens))
        return output
