"""What a GPU lacks is done without, or refused in words; numbers are plain torch's. One attribute at a time."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]
POLICIES = ("no-advice", "advise", "window", "swap", "swap+recompute", "resident", "auto")
USUAL = {"no-advice": "MANAGED", "advise": "MANAGED", "window": "MANAGED", "swap": "CHUNKED"}
USUAL |= {"swap+recompute": "CHUNKED", "resident": "DEVICE", "auto": "CHUNKED"}
NO_CHUNKS = {
    policy: "explicit swapping is not possible: .* {reason}" for policy in ("swap", "swap+recompute")
}


def without(reason: str, **outcomes: str) -> dict[str, str]:
    """What each policy has where something is missing; `{reason}` in a refusal stands for the words of why."""
    found = USUAL | NO_CHUNKS if outcomes.pop("chunks", "") == "none" else dict(USUAL)
    return {policy: told.replace("{reason}", reason) for policy, told in (found | outcomes).items()}


LACKS: dict[str, tuple[dict[str, int], dict[str, str]]] = {
    "nothing": ({}, USUAL),
    "memory of its own": ({"18": 1}, without(r"is integrated \(attribute 18\)", chunks="none", auto="MANAGED")),
    "managed memory": ({"83": 0}, USUAL),
    "concurrent managed access": ({"89": 0}, USUAL),
    "virtual memory": ({"102": 0}, without(r"\(attribute 102\)", chunks="none", auto="MANAGED")),
    "virtual memory of the host": ({"141": 0}, USUAL),
    "managed and virtual memory": ({"83": 0, "102": 0}, USUAL),
    "concurrent access and virtual memory": ({"89": 0, "102": 0}, USUAL),
}
"""Attributes with values other than usual, and by policy the memory of its tensors, or how it is refused."""
HARMLESS = {"33", "34", "50", "75", "76", "88", "100", "101", "134"}
"""Attributes that are asked for to describe a device; without them everything works as it does with them."""
