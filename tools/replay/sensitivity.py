"""How the answers about BERT-Large under unified memory move when each cost of the device is halved or doubled."""

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

from replay.bert_runs import BertRuns
from replay.changed import with_values
from replay.choi import IN_MEMORY, NO_ADVICE, TOO_LARGE
from replay.columns import aligned
from replay.outcome import number
from umadvise.records.device import DIRECTIONS, DeviceProfile

_BEST = ("preferredlocation", "readmostly", "prefetch")
_ANSWERS: dict[str, Callable[[BertRuns], float]] = {
    "step without advice, s": lambda runs: runs.run(TOO_LARGE, NO_ADVICE).step_s,
    "to device, s": lambda runs: runs.run(TOO_LARGE, NO_ADVICE).h2d_s,
    "to host, s": lambda runs: runs.run(TOO_LARGE, NO_ADVICE).d2h_s,
    "step with prefetch, s": lambda runs: runs.run(TOO_LARGE, _BEST).step_s,
    "in memory, s": lambda runs: runs.run(IN_MEMORY, NO_ADVICE).step_s,
    "in memory with prefetch, s": lambda runs: runs.run(IN_MEMORY, _BEST).step_s,
}


def lines(runs: BertRuns) -> Iterator[str]:
    """A line a constant: its value, and the range of each answer between half of it and twice of it."""
    device = runs.device
    yield f"{device.name}, calibrated: answers with half and with twice of each cost"
    rows = [("cost", "value", *_ANSWERS), ("as it is", "", *(number(answer(runs)) for answer in _ANSWERS.values()))]
    for name, (place, facts) in _constants(device).items():
        both = [BertRuns(_scaled(device, place, facts, factor), runs.efficiency) for factor in (0.5, 2.0)]
        ranges = ((number(answer(each)) for each in both) for answer in _ANSWERS.values())
        value = getattr(reduce(getattr, place, device), facts[0]).value
        rows.append((name, number(value), *(" to ".join(ends) for ends in ranges)))
    yield from aligned(rows)


def _constants(device: DeviceProfile) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """By name: the part of the device, and the facts there that are it."""
    costs, names = ("unified_memory", "costs"), device.unified_memory.costs.__struct_fields__
    known = [name for name in names if getattr(device.unified_memory.costs, name).value]
    constants: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {name: (costs, (name,)) for name in known}
    for way in DIRECTIONS:
        constants[f"{way} fixed_ns"] = ("link", way), ("fixed_ns",)
        constants[f"{way} bytes_per_s"] = ("link", way), ("bytes_per_s", "both_bytes_per_s")
    return {**constants, "launch_ns": ((), ("launch_ns",))}


def _scaled(device: DeviceProfile, place: Sequence[str], facts: Sequence[str], factor: float) -> DeviceProfile:
    """The device with a multiple of each fact that is known."""
    values: dict[str, Any] = {}
    for name in facts:
        if (value := getattr(reduce(getattr, place, device), name).value) is not None:
            scaled = max(round(value * factor), 1) if isinstance(value, int) else value * factor
            values[name] = min(scaled, 1) if "share" in name else scaled
    for name in reversed(place):
        values = {name: values}
    return with_values(device, values)
