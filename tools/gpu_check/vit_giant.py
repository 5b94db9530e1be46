"""The network of torchao's example for its offloaded optimizer: timm's ViT-giant in bfloat16, with checkpointed blocks.

torchao's README (torchao/optim) names `vit_giant_patch14_dinov2` of timm, trained on 224 x 224 images of 45 classes.
"""

import importlib.util
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from umadvise.recording.workload import Workload, training_step

_PATCH, _CLASSES = 14, 45


def _loss(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(images).float(), labels)


def vit_giant(batch: int, *, image: int = 224, layers: int = 40, width: int = 1408, heads: int = 16) -> Workload:
    """One training step with AdamW; without timm, of a float32 vision transformer of that size, for dry runs.

    Args:
        batch: images a step.
        image: side of an image in pixels, a multiple of 14.
        layers: number of blocks.
        width: size of a token, a multiple of `heads`.
        heads: number of heads of each attention.
    """
    if importlib.util.find_spec("timm") is None:
        from networks import NETWORKS

        sizes = {"image": image, "patch": _PATCH, "width": width, "heads": heads, "layers": layers}
        return NETWORKS["vit_b16"](batch, classes=_CLASSES, **sizes)
    import timm

    model: Any = timm.create_model(
        "vit_giant_patch14_dinov2",
        num_classes=_CLASSES,
        img_size=image,
        depth=layers,
        embed_dim=width,
        num_heads=heads,
    )
    model.set_grad_checkpointing()
    model.to(torch.bfloat16).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    images = torch.randn(batch, 3, image, image, dtype=torch.bfloat16)
    return training_step(model, optimizer, _loss, images, torch.randint(_CLASSES, (batch,)), name="vit_giant")
