"""What a program says of its training, for runs of it to be compared: lines in the file that TOLD names.

A line is a name and a value that leaves no bit out; times stand beside, and are not compared.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

SHORT = bool(os.environ.get("SHORT"))
"""Whether as few steps are to be made as show something."""


def tell(name: str, value: Any = None) -> None:
    """Adds a line: numbers and tensors of one as hexadecimal floats, everything else as it prints."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, torch.Tensor):
        value = checksum([value])
    text = value.hex() if isinstance(value, float) else str(value)
    with Path(os.environ["TOLD"]).open("a", encoding="utf-8") as told:
        told.write(json.dumps([time.perf_counter(), name, text]) + "\n")


def tell_state(model: torch.nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    """Adds checksums of all that training leaves: parameters, buffers, and the optimizers' state."""
    tell("model", checksum(model.state_dict().values()))
    for optimizer in optimizers:
        tell("optimizer", checksum(pytree.tree_leaves(optimizer.state_dict()["state"])))


def checksum(values: Iterable[Any]) -> str:
    """Of tensors' bytes, kinds and shapes, and of other values as they print."""
    digest = hashlib.sha256()
    for value in values:
        if isinstance(value, torch.Tensor):
            digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
            plain = value.detach().cpu().to_dense() if value.layout is not torch.strided else value.detach().cpu()
            digest.update(plain.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            digest.update(repr(value).encode())
    return digest.hexdigest()[:32]
