"""Training loops, and a generating one, whose steps are not alike: what tools/benchmark_changing.py runs.

Each step's shapes follow from its number (and, of a mixture of experts, from what the router has learnt), so that a
step can be run again, alone and as often as one likes. The networks are as small as two cores need, of tensors that are
large enough to leave a device.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

STEPS = 16
WIDTH, WORDS, LAYERS = 512, 2048, 4
BATCH = 8


@dataclass(frozen=True)
class Changing:
    """A loop that is built, on torch's default device.

    Attributes:
        modules: the modules that it trains or asks.
        optimizers: optimizers of their parameters.
        step: function that runs the step of a number, from 0 on, and returns its loss, or what it generated.
    """

    modules: list[nn.Module]
    optimizers: list[torch.optim.Optimizer]
    step: Callable[[int], torch.Tensor]


def _random(number: int) -> random.Random:
    return random.Random(f"step {number}")


def _tokens(number: int, length: int, batch: int = BATCH) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randint(WORDS, (batch, length), generator=generator)


class _LanguageModel(nn.Module):
    """A transformer that predicts words; where `survives` says so, a layer is left out."""

    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor, survives: Callable[[int], bool] = lambda _layer: True) -> torch.Tensor:
        hidden = self.words(tokens)
        for index, layer in enumerate(self.layers):
            if survives(index):
                hidden = layer(hidden)
        logits: torch.Tensor = self.head(hidden)
        return logits

    def loss(self, tokens: torch.Tensor, survives: Callable[[int], bool] = lambda _layer: True) -> torch.Tensor:
        logits = self(tokens[:, :-1], survives)
        return nn.functional.cross_entropy(logits.reshape(-1, WORDS), tokens[:, 1:].reshape(-1))


def _language(loss: Callable[[_LanguageModel, int], torch.Tensor]) -> Changing:
    """One optimizer step for each loss."""
    model = _LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(number: int) -> torch.Tensor:
        optimizer.zero_grad()
        found = loss(model, number)
        found.backward()
        optimizer.step()
        return found.detach()

    return Changing([model], [optimizer], step)


def lengths_at_random() -> Changing:
    """Sentences as long as they happen to be."""
    return _language(lambda model, number: model.loss(_tokens(number, _random(number).randrange(48, 129))))


def lengths_in_buckets() -> Changing:
    """Sentences that are padded to one of four lengths."""
    return _language(lambda model, number: model.loss(_tokens(number, _random(number).choice((48, 72, 96, 128)))))


def growing_lengths() -> Changing:
    """A curriculum: each step's sentences are longer than the last one's."""
    return _language(lambda model, number: model.loss(_tokens(number, 48 + 5 * number)))


def stochastic_depth() -> Changing:
    """A third of the layers is left out of each step (Huang et al. 2016, "Deep networks with stochastic depth")."""

    def loss(model: _LanguageModel, number: int) -> torch.Tensor:
        left_out = set(_random(number).sample(range(LAYERS), _random(-number - 1).randrange(0, LAYERS // 2 + 1)))
        return model.loss(_tokens(number, 96), lambda layer: layer not in left_out)

    return _language(loss)


def last_short_batch() -> Changing:
    """Every fifth step ends an epoch, with what is left of the data."""
    return _language(lambda model, number: model.loss(_tokens(number, 96, 5 if number % 5 == 4 else BATCH)))


def evaluation_between() -> Changing:
    """After every third step's update the model is asked without gradients."""
    training = _language(lambda model, number: model.loss(_tokens(number, 96)))
    model = training.modules[0]
    assert isinstance(model, _LanguageModel)

    def step(number: int) -> torch.Tensor:
        found = training.step(number)
        if number % 3 == 2:
            with torch.no_grad():
                found = found + sum(model.loss(_tokens(-seed, 112)) for seed in (1, 2))
        return found

    return Changing(training.modules, training.optimizers, step)


def micro_batches() -> Changing:
    """One to eight micro-batches, whose gradients are summed, before each update."""
    model = _LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(number: int) -> torch.Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for part in range(_random(number).randrange(1, 9)):
            loss = model.loss(_tokens(8 * number + part, 96, BATCH // 2))
            loss.backward()
            total += loss.detach()
        optimizer.step()
        return total

    return Changing([model], [optimizer], step)


def adversaries() -> Changing:
    """A generator's step after a discriminator's (Goodfellow et al. 2014, algorithm 1)."""
    generator = nn.Sequential(
        *(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 3072), nn.Tanh())
    )
    discriminator = nn.Sequential(
        *(nn.Linear(3072, 1024), nn.LeakyReLU(0.2), nn.Linear(1024, 1024), nn.LeakyReLU(0.2), nn.Linear(1024, 1))
    )
    optimizers = [torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999)) for net in (generator, discriminator)]
    told = nn.functional.binary_cross_entropy_with_logits

    def step(number: int) -> torch.Tensor:
        seeds = torch.Generator().manual_seed(number)
        noise = torch.randn(1024, 128, generator=seeds)
        if number % 2 == 0:
            real = torch.rand(1024, 3072, generator=seeds)
            with torch.no_grad():
                fake = generator(noise)
            optimizers[1].zero_grad()
            loss = told(discriminator(real), torch.ones(1024, 1)) + told(discriminator(fake), torch.zeros(1024, 1))
            loss.backward()
            optimizers[1].step()
        else:
            optimizers[0].zero_grad()
            loss = told(discriminator(generator(noise)), torch.ones(1024, 1))
            loss.backward()
            optimizers[0].step()
        return loss.detach()

    return Changing([generator, discriminator], list(optimizers), step)


class _Tagger(nn.Module):
    """Words, a recurrent net over packed sequences, a tag for each word."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.net = nn.LSTM(WIDTH, WIDTH, 2, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(self.words(tokens), lengths, batch_first=True, enforce_sorted=False)
        tags: torch.Tensor = self.head(self.net(packed)[0].data)
        return tags


def packed_sequences() -> Changing:
    """An LSTM over sentences of different lengths, packed."""
    model = _Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(number: int) -> torch.Tensor:
        lengths = torch.tensor([_random(100 * number + row).randrange(8, 49) for row in range(2 * BATCH)])
        tokens = _tokens(number, int(lengths.max()), 2 * BATCH)
        wanted = pack_padded_sequence(tokens, lengths, batch_first=True, enforce_sorted=False).data
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens, lengths), wanted)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Changing([model], [optimizer], step)


class _Experts(nn.Module):
    """A layer whose words each go to one of several experts (Shazeer et al. 2017), as the router likes."""

    def __init__(self, experts: int = 8) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(experts)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        weight, chosen = self.router(hidden).softmax(-1).max(-1)
        out = torch.zeros_like(hidden)
        for index, expert in enumerate(self.experts):
            rows = (chosen == index).nonzero().squeeze(-1)
            if rows.numel() > 0:
                out = out.index_add(0, rows, expert(hidden[rows]) * weight[rows, None])
        return hidden + out


def mixture_of_experts() -> Changing:
    """Experts with uneven loads, some of them with none."""
    words, head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
    model = nn.Sequential(words, *(_Experts() for _ in range(3)), head)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(number: int) -> torch.Tensor:
        tokens = _tokens(number, 1024, 1)[0]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens), tokens.roll(1))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Changing([model], [optimizer], step)


def images_of_different_sizes() -> Changing:
    """A convolutional network on images as large as they happen to be, in multiples of 8."""
    widths = (64, 64, 128, 128, 256, 256)
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(zip((3, *widths), widths, strict=False)):
        layers += [nn.Conv2d(before, after, 3, 1 + (index in {2, 4}), 1), nn.BatchNorm2d(after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(number: int) -> torch.Tensor:
        side = 8 * _random(number).randrange(6, 13)
        seeds = torch.Generator().manual_seed(number)
        images, wanted = torch.rand(8, 3, side, side, generator=seeds), torch.randint(100, (8,), generator=seeds)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), wanted)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Changing([model], [optimizer], step)


class _CachingLayer(nn.Module):
    """Attention of the newest word to all before it, whose keys and values are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.projection, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.cache: tuple[torch.Tensor, torch.Tensor] | None = None

    def keep(self, words: int) -> None:
        """Forgets what is beyond so many words, where a step is run again."""
        if self.cache is not None and self.cache[0].shape[1] > words:
            self.cache = self.cache[0][:, :words], self.cache[1][:, :words]

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        query, key, value = self.projection(hidden).chunk(3, -1)
        if self.cache is not None:
            key, value = torch.cat([self.cache[0], key], 1), torch.cat([self.cache[1], value], 1)
        self.cache = key, value
        hidden = hidden + self.out(nn.functional.scaled_dot_product_attention(query, key, value))
        out: torch.Tensor = hidden + self.narrow(nn.functional.gelu(self.wide(hidden)))
        return out


def growing_cache() -> Changing:
    """A word generated in each step, by a model that keeps what it has computed of those before."""
    words, head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
    layers = [_CachingLayer() for _ in range(LAYERS)]
    model = nn.Sequential(words, *layers, head)
    newest: torch.Tensor | None = None

    def step(number: int) -> torch.Tensor:
        nonlocal newest
        with torch.no_grad():
            if newest is None:  # the prompt, and what would have been generated
                newest = model(_tokens(0, 64 + number))[:, -1:].argmax(-1)
            for layer in layers:
                layer.keep(64 + number)
            newest = model(newest)[:, -1:].argmax(-1)
        return newest.clone()

    return Changing([model], [], step)


PROGRAMS: dict[str, Callable[[], Changing]] = {
    each.__name__: each
    for each in (
        lengths_at_random,
        lengths_in_buckets,
        growing_lengths,
        adversaries,
        micro_batches,
        stochastic_depth,
        packed_sequences,
        mixture_of_experts,
        images_of_different_sizes,
        evaluation_between,
        last_short_batch,
        growing_cache,
    )
}
"""All of them, by name."""
NEVER_REPEAT = frozenset({"lengths_at_random", "growing_lengths", "growing_cache", "packed_sequences"})
"""Those of which no step has the sizes of another, or hardly any."""
