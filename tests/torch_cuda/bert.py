"""BERT-Large, of the modules that transformers has for it, which is not installed here.

Which tensors share a chunk, and when they come and go, decides whether steps stop mapping memory: torch's own encoder
(tools/gpu_check/stand_in.py) has one projection where this one has three.
"""

import torch
from torch import nn
from torch.nn import functional

from umadvise.recording.workload import Workload, training_step

HIDDEN, HEADS, VOCABULARY = 1024, 16, 30522


class Attention(nn.Module):
    """Each product on its own."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(HIDDEN, HIDDEN) for _ in range(3))

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        shape = (*hidden.shape[:2], HEADS, HIDDEN // HEADS)
        query, key, value = (
            project(hidden).view(shape).transpose(1, 2) for project in (self.query, self.key, self.value)
        )
        scores = torch.matmul(query, key.transpose(2, 3)) * (HIDDEN // HEADS) ** -0.5 + mask
        weights = functional.dropout(functional.softmax(scores, dim=-1), 0.1)
        return torch.matmul(weights, value).transpose(1, 2).contiguous().view(hidden.shape)


class Residual(nn.Module):
    """Adds what came before to a projection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense, self.norm = nn.Linear(width, HIDDEN), nn.LayerNorm(HIDDEN)

    def forward(self, hidden: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = self.norm(functional.dropout(self.dense(hidden), 0.1) + before)
        return added


class BertLayer(nn.Module):
    """Its name is transformers' too: tools/gpu_check makes regions of such modules."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.attended = Attention(), Residual(HIDDEN)
        self.wide, self.narrow = nn.Linear(HIDDEN, 4 * HIDDEN), Residual(4 * HIDDEN)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        attended = self.attended(self.attention(hidden, mask), hidden)
        narrow: torch.Tensor = self.narrow(functional.gelu(self.wide(attended)), attended)
        return narrow


class MaskedLanguageModel(nn.Module):
    """Scores of each token of the vocabulary; the output embedding is the input's."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.words, self.places, self.kinds = (nn.Embedding(size, HIDDEN) for size in (VOCABULARY, 512, 2))
        self.first_norm, self.last_norm = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.layers = nn.ModuleList(BertLayer() for _ in range(layers))
        self.last, self.bias = nn.Linear(HIDDEN, HIDDEN), nn.Parameter(torch.zeros(VOCABULARY))

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)[None]
        embedded = self.words(tokens) + self.kinds(torch.zeros_like(tokens)) + self.places(places)
        hidden = functional.dropout(self.first_norm(embedded), 0.1)
        hidden_mask = (1.0 - mask[:, None, None, :].to(hidden.dtype)) * torch.finfo(hidden.dtype).min
        for layer in self.layers:
            hidden = layer(hidden, hidden_mask)
        hidden = self.last_norm(functional.gelu(self.last(hidden)))
        return functional.linear(hidden, self.words.weight, self.bias)


def _loss(model: nn.Module, tokens: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(tokens, mask).view(-1, VOCABULARY), labels.view(-1))


def bert_large(batch: int, *, length: int, layers: int = 24) -> Workload:
    """One training step with AdamW."""
    model = MaskedLanguageModel(layers).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens, labels = torch.randint(VOCABULARY, (batch, length)), torch.randint(VOCABULARY, (batch, length))
    mask = torch.ones(batch, length, dtype=torch.int64)
    return training_step(model, optimizer, _loss, tokens, mask, labels, name="bert_large")
