"""Twelve networks whose steps take milliseconds, and in which every kind has tensors of more than a chunk.

Chunks are of 2 MiB on the emulated device, so that what is larger than 1 MiB can leave it: here weights, gradients,
optimizer state and activations all do. Every model gives logits for a cross entropy.
"""

import torch
from small_networks import Batch, Cnn, Embedding, Network, UNet
from torch import nn
from torch.nn import functional


class Mlp(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1024), nn.Linear(1024, 10)
        )


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1200, 256)
        self.lstm = nn.LSTM(256, 320, num_layers=2, dropout=0.1)
        self.head = nn.Linear(320, 1200)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(self.embedding(tokens))
        return self.head(hidden).flatten(0, 1)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1500, 288)
        layer = nn.TransformerEncoderLayer(288, 4, dim_feedforward=1152, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(288, 1500)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(tokens))).flatten(0, 1)


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x).add_(x), inplace=True)


class ResNet(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 12, 3, padding=1),
            Residual(12),
            Residual(12),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(12, 10),
        )


class DenseNet(nn.Module):
    def __init__(self, growth: int = 8, layers: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, growth, 3, padding=1)
        widths = [growth * (layer + 1) for layer in range(layers)]
        self.norms = nn.ModuleList([nn.BatchNorm2d(width) for width in widths])
        self.grow = nn.ModuleList([nn.Conv2d(width, growth, 3, padding=1) for width in widths])
        self.head = nn.Linear(growth * (layers + 1), 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = [self.stem(x)]
        for norm, grow in zip(self.norms, self.grow, strict=True):
            features.append(grow(functional.relu(norm(torch.cat(features, dim=1)))))
        return self.head(torch.cat(features, dim=1).mean(dim=(2, 3)))


class TiedAutoencoder(nn.Module):
    """The decoder's weights are views of the encoder's, and one layer occurs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(512, 1024)
        self.twice = nn.Linear(1024, 1024)
        self.again = nn.Linear(1024, 1024)
        self.again.weight = self.twice.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.encoder(x))
        hidden = self.again(torch.tanh(self.twice(hidden)))
        return functional.linear(hidden, self.encoder.weight.t())


class Dropouts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(256, 1200), nn.Linear(1200, 300), nn.Linear(300, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.dropout(self.first(x), 0.3, self.training, inplace=True).relu_()
        x = functional.alpha_dropout(self.second(x), 0.2, self.training)
        x = functional.feature_alpha_dropout(x, 0.1, self.training) + torch.rand_like(x) * self.training
        return self.head(functional.dropout1d(x, 0.1, self.training))


class MixtureOfExperts(nn.Module):
    """Each token goes to one of four experts by its values: sizes, and which experts run, differ from step to step."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(256, 4)
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(256, 1100), nn.ReLU(), nn.Linear(1100, 256)) for _ in range(4)]
        )
        self.head = nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(x).softmax(dim=1).max(dim=1)
        mixed = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows = (chosen == index).nonzero().flatten()
            if rows.numel() > 0:
                mixed = mixed.index_add(0, rows, (expert(x[rows]) * weights[rows, None]).to(mixed.dtype))
        return self.head(mixed)


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        from transformers.models.bert import BertConfig, BertForMaskedLM

        config = BertConfig(
            vocab_size=1200,
            num_hidden_layers=2,
            hidden_size=288,
            num_attention_heads=4,
            intermediate_size=1152,
            max_position_embeddings=64,
        )
        self.bert = BertForMaskedLM(config)
        self.bert.set_attn_implementation("eager")

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.bert(input_ids=tokens).logits
        return logits.flatten(0, 1)


def _tokens(vocabulary: int, *shape: int) -> Batch:
    tokens = torch.randint(vocabulary, shape)
    return tokens, tokens.roll(1, 0).flatten()


def _images(channels: int, side: int, count: int) -> Batch:
    return torch.randn(count, channels, side, side), torch.randint(10, (count,))


FAST_NETWORKS = {
    network.name: network
    for network in (
        Network("mlp", Mlp, lambda: (torch.randn(320, 512), torch.randint(10, (320,)))),
        Network("cnn", lambda: Cnn(8, 3, 48), lambda: _images(3, 48, 16)),
        Network("lstm", Lstm, lambda: _tokens(1200, 8, 40)),
        Network("transformer", Transformer, lambda: _tokens(1500, 8, 32)),
        Network("unet", lambda: UNet(24), lambda: (torch.randn(6, 1, 80, 80), torch.randint(2, (6, 80, 80)))),
        Network(
            "embedding",
            lambda: Embedding(30_000, 20_000, 24),
            lambda: (torch.randint(20_000, (64, 12)), torch.randint(10, (64,))),
        ),
        Network("resnet", ResNet, lambda: _images(3, 56, 8)),
        Network("densenet", DenseNet, lambda: _images(3, 48, 8)),
        Network("tied", TiedAutoencoder, lambda: (torch.randn(300, 512), torch.randint(512, (300,)))),
        Network("dropout", Dropouts, lambda: (torch.randn(300, 256), torch.randint(10, (300,)))),
        Network("experts", MixtureOfExperts, lambda: (torch.randn(400, 256), torch.randint(10, (400,)))),
        Network("bert", Bert, lambda: _tokens(1200, 8, 32)),
    )
}
