"""For machines without transformers: torch's own transformer in BERT's shape, on tokens by chance."""

import torch
from torch import nn
from torch.nn import functional

from umadvise.recording.workload import Workload, training_step


class MaskedLanguageModel(nn.Module):
    """BertForMaskedLM's shape: embeddings, encoder, and an output projection that shares the embedding's weight."""

    def __init__(self, vocabulary: int, layers: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(512, hidden)
        layer = nn.TransformerEncoderLayer(hidden, heads, 4 * hidden, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of each token of the vocabulary, for each place; places come first, as the encoder wants them."""
        positions = torch.arange(tokens.shape[0], device=tokens.device)[:, None]
        hidden: torch.Tensor = self.norm(self.encoder(self.words(tokens) + self.positions(positions)))
        return hidden @ self.words.weight.t()


def _loss(model: nn.Module, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())


def bert_large(
    batch: int,
    *,
    length: int,
    layers: int = 24,
    hidden: int = 1024,
    heads: int = 16,
    vocabulary: int = 30522,
) -> Workload:
    """Options as of examples/networks/bert.py."""
    model = MaskedLanguageModel(vocabulary, layers, hidden, heads).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens, labels = torch.randint(vocabulary, (length, batch)), torch.randint(vocabulary, (length, batch))
    return training_step(model, optimizer, _loss, tokens, labels, name="bert_large")
