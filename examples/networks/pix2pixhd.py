"""Pix2PixHD (Wang et al. 2018) as the window-scheduling paper trains it: the global generator on 512 x 1024 pixels.

Sizes and losses are those of sections 3.2 and 4 and appendix A.2 of Wang et al.; where the paper is silent they are
defaults of its authors' code (instance norm without parameters; label map and instance edges come in). The order is
that of nnabla's example, the framework of the window-scheduling paper: the discriminators take their step first and
judge again, and the generator's backward begins when theirs has ended: only its own graph lives all along.
"""

from collections.abc import Iterator

import torch
from torch import nn

from networks.vgg import feature_layers
from umadvise.recording.workload import Workload

_LABELS = 35  # of Cityscapes, and one channel more for the edges between instances
_DOWNSAMPLINGS = 4
_SCALES = 2
_FEATURE_WEIGHT = 10.0
_VGG19_CONVOLUTIONS = (2, 2, 4, 4, 4)
_PERCEPTUAL_WEIGHTS = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1.0)

_Features = list[list[torch.Tensor]]  # of a discriminator: by scale, then by layer, the verdict last


def _normalized(convolution: nn.Module, channels: int) -> list[nn.Module]:
    return [convolution, nn.InstanceNorm2d(channels), nn.ReLU(inplace=True)]


class _ResidualBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.ReflectionPad2d(1),
            *_normalized(nn.Conv2d(channels, channels, 3), channels),
            nn.ReflectionPad2d(1),
            nn.Conv2d(channels, channels, 3),
            nn.InstanceNorm2d(channels),
        )

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = maps + self.inner(maps)
        return output


def _generator(width: int, blocks: int) -> nn.Sequential:
    layers = [nn.ReflectionPad2d(3), *_normalized(nn.Conv2d(_LABELS + 1, width, 7), width)]
    for level in range(_DOWNSAMPLINGS):
        wide = width << (level + 1)
        layers += _normalized(nn.Conv2d(wide // 2, wide, 3, stride=2, padding=1), wide)
    layers += [_ResidualBlock(width << _DOWNSAMPLINGS) for _ in range(blocks)]
    for level in reversed(range(_DOWNSAMPLINGS)):
        wide = width << level
        layers += _normalized(nn.ConvTranspose2d(2 * wide, wide, 3, stride=2, padding=1, output_padding=1), wide)
    return nn.Sequential(*layers, nn.ReflectionPad2d(3), nn.Conv2d(width, 3, 7), nn.Tanh())


def _patch_discriminator(width: int) -> nn.ModuleList:
    """Five layers, each of which is a feature to match: 4 x 4 convolutions, three of stride 2."""
    layers = [nn.Sequential(nn.Conv2d(_LABELS + 4, width, 4, stride=2, padding=2), nn.LeakyReLU(0.2, inplace=True))]
    for wide, stride in ((2 * width, 2), (4 * width, 2), (8 * width, 1)):
        convolution = nn.Conv2d(wide // 2, wide, 4, stride=stride, padding=2)
        layers.append(nn.Sequential(convolution, nn.InstanceNorm2d(wide), nn.LeakyReLU(0.2, inplace=True)))
    layers.append(nn.Sequential(nn.Conv2d(8 * width, 1, 4, padding=2)))
    return nn.ModuleList(layers)


class _Discriminator(nn.Module):
    """Patch discriminators of one kind on the image at full and at half size."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scales = nn.ModuleList(_patch_discriminator(width) for _ in range(_SCALES))

    def forward(self, labels: torch.Tensor, image: torch.Tensor) -> _Features:
        maps = torch.cat([labels, image], 1)
        return [
            list(_each_output(layers, maps if scale == 0 else _halved(maps)))
            for scale, layers in enumerate(self.scales)
        ]


def _halved(maps: torch.Tensor) -> torch.Tensor:
    return nn.functional.avg_pool2d(maps, 3, stride=2, padding=1, count_include_pad=False)


def _each_output(layers: nn.Module, maps: torch.Tensor) -> Iterator[torch.Tensor]:
    for layer in layers.children():
        maps = layer(maps)
        yield maps


class _Perceptual(nn.Module):
    """The first ReLU of each of VGG-19's five groups, frozen; the weights do not matter to memory and time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers = feature_layers(_VGG19_CONVOLUTIONS, width)
        pools = [index for index, layer in enumerate(layers) if isinstance(layer, nn.MaxPool2d)]
        stops = [2, *(pool + 3 for pool in pools[:-1])]
        self.parts = nn.ModuleList(
            nn.Sequential(*layers[start:stop]) for start, stop in zip([0, *stops], stops, strict=False)
        )
        self.requires_grad_(False)

    def forward(self, image: torch.Tensor) -> list[torch.Tensor]:
        return list(_each_output(self.parts, image))


def _edges(instances: torch.Tensor) -> torch.Tensor:
    """1 where a pixel's right, left, lower or upper neighbour belongs to another instance."""
    across = instances[..., 1:] != instances[..., :-1]
    down = instances[..., 1:, :] != instances[..., :-1, :]
    edges = torch.zeros_like(instances, dtype=torch.bool)
    edges[..., 1:] |= across
    edges[..., :-1] |= across
    edges[..., 1:, :] |= down
    edges[..., :-1, :] |= down
    return edges.float()


def _adversarial_loss(features: _Features, target: float) -> torch.Tensor:
    """Least squares over the verdicts of all scales."""
    verdicts = [layers[-1] for layers in features]
    losses = [nn.functional.mse_loss(verdict, torch.full_like(verdict, target)) for verdict in verdicts]
    return torch.stack(losses).sum()


def _matching_loss(fake: _Features, real: _Features) -> torch.Tensor:
    """Mean absolute difference of what the discriminators see, without their verdicts."""
    losses = [
        nn.functional.l1_loss(layer, target)
        for fake_layers, real_layers in zip(fake, real, strict=True)
        for layer, target in zip(fake_layers[:-1], real_layers[:-1], strict=True)
    ]
    return torch.stack(losses).sum() * (_FEATURE_WEIGHT / _SCALES)


def _perceptual_loss(perceptual: nn.Module, fake: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    pairs = zip(_PERCEPTUAL_WEIGHTS, perceptual(fake), perceptual(real), strict=True)
    losses = [weight * nn.functional.l1_loss(layer, target) for weight, layer, target in pairs]
    return torch.stack(losses).sum() * _FEATURE_WEIGHT


def _verdict_loss(
    discriminator: nn.Module, labels: torch.Tensor, fake: torch.Tensor, real: torch.Tensor
) -> torch.Tensor:
    """What the discriminators minimize."""
    of_fake, of_real = discriminator(labels, fake), discriminator(labels, real)
    return 0.5 * (_adversarial_loss(of_fake, 0.0) + _adversarial_loss(of_real, 1.0))


def _deceit_loss(
    discriminator: nn.Module, perceptual: nn.Module, labels: torch.Tensor, fake: torch.Tensor, real: torch.Tensor
) -> torch.Tensor:
    """What the generator minimizes."""
    of_fake = discriminator(labels, fake)
    with torch.no_grad():
        of_real = discriminator(labels, real)
    loss = _adversarial_loss(of_fake, 1.0) + _matching_loss(of_fake, of_real)
    return loss + _perceptual_loss(perceptual, fake, real)


def pix2pixhd(batch: int = 4, *, image: tuple[int, int] = (512, 1024), width: int = 64, blocks: int = 9) -> Workload:
    """Pix2PixHD on label maps of 512 x 1024 pixels; batch 4 is the paper's largest in 16 GB without swapping.

    188,149,957 trained parameters: 182,546,755 of the generator and 5,603,202 of the discriminators, the sums over
    their layers (the papers give none). 12,944,960 frozen ones are in the VGG-19 of the perceptual loss.

    Args:
        batch: images a step.
        image: height and width in pixels, multiples of 16 and at least 32.
        width: maps of the first layer of each network; all others are in proportion.
        blocks: residual blocks of the generator.
    """
    generator, discriminator, perceptual = _generator(width, blocks), _Discriminator(width), _Perceptual(width)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    label_map = torch.randint(_LABELS, (batch, 1, *image))
    instances = torch.randint(_LABELS, (batch, 1, *image))
    real = torch.randn(batch, 3, *image)

    def step() -> torch.Tensor:
        one_hot = real.new_zeros(batch, _LABELS, *image).scatter_(1, label_map, 1.0)
        labels = torch.cat([one_hot, _edges(instances)], 1)
        fake = generator(labels)
        judged = fake.detach().requires_grad_()
        discriminator_optimizer.zero_grad(set_to_none=True)  # of what the generator's loss left in it, too
        _verdict_loss(discriminator, labels, fake.detach(), real).backward()
        discriminator_optimizer.step()
        generator_optimizer.zero_grad(set_to_none=True)
        loss = _deceit_loss(discriminator, perceptual, labels, judged, real)
        loss.backward()
        fake.backward(judged.grad)
        generator_optimizer.step()
        return loss.detach()

    modules = (generator, discriminator, perceptual)
    optimizers = (generator_optimizer, discriminator_optimizer)
    return Workload(step, modules, optimizers, (label_map, instances, real), "pix2pixhd")
