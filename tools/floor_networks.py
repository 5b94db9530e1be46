"""Six networks, most of whose tensors are small at a small batch: what tools/smallest_budget.py trains.

Weights are random, and the configurations those of the models of that name; `small` ones are of the same kind, for
tests.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import transformers
from torch import nn
from torch.nn import functional

WORDS = 2000
"""Of the small ones."""


@dataclass(frozen=True)
class FloorTraining:
    """A network with what it is trained on, on torch's default device.

    Attributes:
        model: network that is trained.
        optimizer: AdamW over what of it is trained.
        loss: function that gives the loss of a step of a number, from 0 on.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[int], torch.Tensor]


def _training(model: nn.Module, loss: Callable[[int], torch.Tensor]) -> FloorTraining:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return FloorTraining(model, torch.optim.AdamW(trained, lr=1e-4), loss)


def _text(number: int, words: int, batch: int, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randint(words, (batch, length), generator=generator)


def _of_transformers(model: nn.Module, words: int, batch: int, length: int) -> FloorTraining:
    def loss(number: int) -> torch.Tensor:
        tokens = _text(number, words, batch, length).to(next(model.parameters()).device)
        found: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
        return found

    return _training(model, loss)


def gpt2(*, small: bool) -> FloorTraining:
    """GPT-2 small, on 4 x 64 tokens."""
    config = transformers.GPT2Config(vocab_size=WORDS, n_embd=384, n_head=6, n_layer=3)
    model = transformers.GPT2LMHeadModel(config if small else transformers.GPT2Config())
    return _of_transformers(model, model.config.vocab_size, 4, 64)


def bert(*, small: bool) -> FloorTraining:
    """BERT-base with its masked words, on 4 x 64 tokens."""
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=384, num_attention_heads=6, num_hidden_layers=3, intermediate_size=1536
    )
    model = transformers.BertForMaskedLM(config if small else transformers.BertConfig())
    return _of_transformers(model, model.config.vocab_size, 4, 64)


def t5(*, small: bool) -> FloorTraining:
    """T5-small, on 4 x 64 tokens in and out."""
    config = transformers.T5Config(vocab_size=WORDS, d_model=256, d_ff=1024, num_heads=4, num_layers=2)
    model = transformers.T5ForConditionalGeneration(config if small else transformers.T5Config())
    model.config.decoder_start_token_id = 0
    return _of_transformers(model, model.config.vocab_size, 4, 64)


class _Lora(nn.Module):
    """A linear layer that stays as it is, and a product of two thin matrices that is trained (Hu et al. 2021)."""

    def __init__(self, base: nn.Linear, rank: int = 16) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.base(features) + 2 * self.up(self.down(features))
        return found


def llama(*, small: bool) -> FloorTraining:
    """A Llama of 134 million parameters with LoRA in every linear layer, on 4 x 64 tokens."""
    sizes = (WORDS, 384, 1024, 3, 6) if small else (32000, 768, 2048, 12, 12)
    words, width, middle, layers, heads = sizes
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=words,
            hidden_size=width,
            intermediate_size=middle,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads // 3,
            max_position_embeddings=256,
        )
    )
    model.requires_grad_(False)
    for module in list(model.model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, _Lora(child))
    return _of_transformers(model, words, 4, 64)


class _WordLevel(nn.Module):
    """The Transformer of PyTorch's examples, word_language_model: sizes of its defaults."""

    def __init__(self, words: int, width: int = 200, layers: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 2, width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        found: torch.Tensor = self.head(self.encoder(self.words(tokens), mask=mask, is_causal=True))
        return found


def word_level(*, small: bool) -> FloorTraining:
    """A word-level Transformer for WikiText-2's 33,278 words, on 4 x 35 of them."""
    words = WORDS if small else 33278
    model = _WordLevel(words)

    def loss(number: int) -> torch.Tensor:
        tokens = _text(number, words, 4, 36).to(next(model.parameters()).device)
        return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return _training(model, loss)


class _Basic(nn.Module):
    def __init__(self, given: int, channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(given, channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
            nn.BatchNorm2d(channels),
        )
        shorter = nn.Sequential(nn.Conv2d(given, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))
        self.shortcut = shorter if stride > 1 else nn.Identity()

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(features) + self.shortcut(features))


def resnet18(*, small: bool) -> FloorTraining:
    """ResNet-18 (He et al. 2015, table 1), on 4 images of 224 x 224."""
    size = 64 if small else 224
    blocks = [
        _Basic(given, channels, stride)
        for given, channels, step in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
        for given, stride in ((given, step), (channels, 1))
    ]
    model = nn.Sequential(
        *(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)),
        *blocks,
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)),
    )

    def loss(number: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(number)
        images, labels = torch.randn(4, 3, size, size, generator=generator), _text(number, 1000, 4, 1).flatten()
        where = next(model.parameters()).device
        return functional.cross_entropy(model(images.to(where)), labels.to(where))

    return _training(model, loss)


NETWORKS: dict[str, Callable[..., FloorTraining]] = {
    "GPT-2 small": gpt2,
    "BERT-base": bert,
    "T5-small": t5,
    "Llama, LoRA": llama,
    "word-level Transformer": word_level,
    "ResNet-18": resnet18,
}
