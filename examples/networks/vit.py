"""ViT-B/16 (Dosovitskiy et al. 2021, section 3.1 and table 1), with the dropout of training on ImageNet (table 3)."""

import torch
from torch import nn

from networks.classification import cross_entropy
from networks.transformer import DROPOUT, PreNormLayer
from umadvise.recording.workload import Workload, training_step


class _VisionTransformer(nn.Module):
    def __init__(self, image: int, patch: int, width: int, heads: int, layers: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width) * 0.02)
        self.encoder = nn.Sequential(
            nn.Dropout(DROPOUT),
            *(PreNormLayer(width, heads, causal=False, gelu="none", epsilon=1e-6) for _ in range(layers)),
            nn.LayerNorm(width, eps=1e-6),
        )
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(images), -1, -1), tokens], 1) + self.positions
        output: torch.Tensor = self.head(self.encoder(tokens)[:, 0])
        return output


def vit_b16(
    batch: int = 64,
    *,
    image: int = 224,
    patch: int = 16,
    width: int = 768,
    heads: int = 12,
    layers: int = 12,
    classes: int = 1000,
) -> Workload:
    """ViT-B/16 on 224 x 224 images, with AdamW; the paper spreads its batch of 4096 over many devices.

    86,567,656 parameters: 86 million in table 1; to the last one in torchvision's documentation of `vit_b_16`.

    Args:
        batch: images a step.
        image: side of an image in pixels, a multiple of `patch`.
        patch: side of a patch in pixels.
        width: size of a token, a multiple of `heads`.
        heads: number of heads of each attention.
        layers: number of layers of the encoder.
        classes: number of labels that exist.
    """
    model = _VisionTransformer(image, patch, width, heads, layers, classes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.3)
    labels = torch.randint(classes, (batch,))
    images = torch.randn(batch, 3, image, image)
    return training_step(model, optimizer, cross_entropy, images, labels, name="vit_b16")
