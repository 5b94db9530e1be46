"""The networks of the papers, each a factory that builds one training step at the paper's size.

A factory builds everything on torch's default device: under `torch.device("meta")` it costs no memory for data, so that
any size can be recorded. Nothing that a step does reads a tensor's value on the host. The options of a factory are its
sizes: the defaults are the paper's, smaller ones make a network of the same kind that runs anywhere.
"""

import importlib
from collections.abc import Callable
from functools import partial

from umadvise.recording.workload import Workload

# By family: the module of this package, and its factories.
_FAMILIES = {
    "alexnet": ("alexnet",),
    "overfeat": ("overfeat",),
    "vgg": ("vgg16", "vgg116", "vgg216", "vgg316", "vgg416", "vgg516"),
    "resnet": ("resnet50", "resnet101", "resnet152"),
    "stochastic_depth": ("stochastic_depth_resnet",),
    "densenet": ("densenet121",),
    "unet": ("unet",),
    "pix2pixhd": ("pix2pixhd",),
    "deeplab": ("deeplabv3plus",),
    "char_lstm": ("char_lstm",),
    "kmeans": ("kmeans",),
    "bert": ("bert_large",),
    "gpt2": ("gpt2",),
    "vit": ("vit_b16",),
}


def _build(family: str, name: str, *arguments: int, **options: object) -> Workload:
    workload = getattr(importlib.import_module(f"{__name__}.{family}"), name)(*arguments, **options)
    assert isinstance(workload, Workload)
    return workload


NETWORKS: dict[str, Callable[..., Workload]] = {
    name: partial(_build, family, name) for family, names in _FAMILIES.items() for name in names
}
"""Every factory by name; calling one imports its family, so that only BERT and GPT-2 need transformers."""
