"""For machines without transformers or tokenizers: torch's own transformer, as large as BERT, on letters as tokens."""

import sys
from types import ModuleType, SimpleNamespace

import torch
from torch import nn
from torch.nn import functional


class MaskedLanguageModel(nn.Module):
    """BertForMaskedLM's shape: embeddings, encoder, and an output projection that shares the embedding's weight."""

    def __init__(self, vocabulary: int, layers: int, hidden: int, heads: int, intermediate: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(512, hidden)
        layer = nn.TransformerEncoderLayer(hidden, heads, intermediate, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> SimpleNamespace:
        """As BertForMaskedLM: an object with the mean loss over the predicted tokens."""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden = self.norm(self.encoder(self.words(input_ids) + self.positions(positions)))
        logits = hidden @ self.words.weight.t()
        return SimpleNamespace(loss=functional.cross_entropy(logits.flatten(0, 1), labels.flatten()))


def _letters() -> ModuleType:
    """bert_text without tokenizers: the corpus by letters, one token in seven to be predicted."""
    from pydoc_data import topics

    def load_text(vocabulary_size: int) -> torch.Tensor:
        return torch.tensor([ord(letter) % vocabulary_size for letter in "".join(topics.topics.values())])

    def masked_batch(text: torch.Tensor, batch_size: int, sequence_length: int, seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        starts = torch.randint(len(text) - sequence_length, (batch_size, 1), generator=generator)
        tokens = text[starts + torch.arange(sequence_length)]
        predicted = torch.arange(sequence_length).expand_as(tokens) % 7 == 0
        return {"input_ids": tokens.masked_fill(predicted, 0), "labels": tokens.masked_fill(~predicted, -100)}

    module = ModuleType("bert_text")
    module.__dict__.update(Text=torch.Tensor, load_text=load_text, masked_batch=masked_batch)
    return module


def install() -> None:
    """Puts both in place of what bert_large takes."""
    sys.modules["bert_text"] = _letters()
    import bert_large

    def build_model(size: str) -> nn.Module:
        return MaskedLanguageModel(bert_large.VOCABULARY_SIZE, *bert_large.SIZES[size]).train()

    bert_large.build_model = build_model
