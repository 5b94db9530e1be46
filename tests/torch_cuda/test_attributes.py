"""What a GPU lacks is done without, or refused in words; numbers are plain torch's. One attribute at a time."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]
POLICIES = ("no-advice", "advise", "window", "swap", "swap+recompute", "resident", "auto")
UNIFIED, CHUNKS = ("no-advice", "advise", "window"), ("swap", "swap+recompute")
USUAL = dict.fromkeys(UNIFIED, "MANAGED") | dict.fromkeys(CHUNKS, "CHUNKED") | {"resident": "DEVICE", "auto": "CHUNKED"}
"""By policy the memory of a model that is larger than the budget."""


def no_chunks(reason: str) -> dict[str, str]:
    return dict.fromkeys(CHUNKS, f"explicit swapping is not possible: .* {reason}")


_NOT_MANAGED = r"has no managed memory \(attribute 83\)"
_NOT_CONCURRENT = r"the device has no concurrent managed access \(attribute 89\)"
NO_MANAGED = dict.fromkeys(("no-advice", "advise"), rf'{_NOT_MANAGED}: use policy "resident" or "swap"')
NO_MANAGED |= {"window": rf"policy window needs prefetches: .* {_NOT_MANAGED}. Use swap, or resident"}
NOT_CONCURRENT = {
    "no-advice": "MANAGED",
    "advise": f"no budget can be kept: {_NOT_CONCURRENT}",
    "window": f"policy window needs prefetches: {_NOT_CONCURRENT}.* Use swap, or resident",
}
NOT_VIRTUAL = no_chunks(r"has no management of virtual memory \(attribute 102\)")

LACKS: dict[str, tuple[dict[str, int], dict[str, str]]] = {
    "nothing": ({}, USUAL),
    "integrated": ({"18": 1}, USUAL | no_chunks(r"is integrated \(attribute 18\)") | {"auto": "MANAGED"}),
    "managed memory": ({"83": 0}, USUAL | NO_MANAGED),
    "concurrent access": ({"89": 0}, USUAL | NOT_CONCURRENT),
    "virtual memory": ({"102": 0}, USUAL | NOT_VIRTUAL | {"auto": "MANAGED"}),
    "virtual memory of the host": ({"141": 0}, USUAL),
    "managed and virtual memory": ({"83": 0, "102": 0}, USUAL | NO_MANAGED | NOT_VIRTUAL | {"auto": "DEVICE"}),
    "concurrent and virtual": ({"89": 0, "102": 0}, USUAL | NOT_CONCURRENT | NOT_VIRTUAL | {"auto": "DEVICE"}),
}
"""Attributes with values other than usual, and by policy what memory there is then, or how it is refused."""
DESCRIBING = ("33", "34", "50", "75", "76", "88", "100", "101", "134")
LACKS |= {f"attribute {number}": ({number: 0}, USUAL) for number in DESCRIBING}
"""Without attributes that only describe a device all is as with them."""
CASES = [
    (name, policy)
    for name in LACKS
    for policy in (POLICIES if not name.startswith("attribute") else ("window", "swap", "auto"))
]


@pytest.fixture(scope="module")
def vanilla(run: Run) -> Any:
    return run("attributes.py", "vanilla")


@pytest.fixture(scope="module")
def seen(run: Run) -> Any:
    cases = {
        name: {"attributes": attributes, "policies": [policy for each, policy in CASES if each == name]}
        for name, (attributes, _) in LACKS.items()
    }
    return run("attributes.py", "lacking", json.dumps(cases))


@pytest.mark.parametrize(("name", "policy"), CASES)
def test_it_does_without_or_is_refused_in_words(vanilla: Any, seen: Any, name: str, policy: str) -> None:
    expected, told = LACKS[name][1][policy], seen[f"{name} {policy}"]
    if expected.isupper():
        assert told == {**vanilla, "memory": told.get("memory")}
        assert told["memory"] in ({expected, "MANAGED"} if policy == "auto" else {expected})  # it may prefer `window`
    else:
        assert re.search(expected, told["refused"]), told
