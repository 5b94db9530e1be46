"""How the answers about BERT-Large under unified memory move when each cost of the device is halved or doubled."""

from collections.abc import Callable, Iterator

import msgspec

from replay.bert_runs import BertRuns
from replay.changed import with_costs
from replay.choi import IN_MEMORY, NO_ADVICE, TOO_LARGE
from replay.columns import aligned
from replay.outcome import number
from umadvise.records.device import DeviceProfile, Fact, FactOrNone

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
    for name, (value, scaled) in _constants(device).items():
        both = [BertRuns(scaled(factor), runs.efficiency) for factor in (0.5, 2.0)]
        ranges = ((number(answer(each)) for each in both) for answer in _ANSWERS.values())
        rows.append((name, number(value), *(" to ".join(ends) for ends in ranges)))
    yield from aligned(rows)


_Scaled = Callable[[float], DeviceProfile]


def _constants(device: DeviceProfile) -> dict[str, tuple[float, _Scaled]]:
    """By name: the value, and the device with a multiple of it."""
    constants: dict[str, tuple[float, _Scaled]] = {}
    costs = device.unified_memory.costs
    for name in type(costs).__struct_fields__:
        fact: Fact[float] | FactOrNone[float] = getattr(costs, name)
        if fact.value:
            constants[name] = fact.value, _of_costs(device, name, fact)
    for direction in ("h2d", "d2h"):
        way = getattr(device.link, direction)
        constants[f"{direction} fixed_ns"] = way.fixed_ns.value, _of_link(device, direction, ("fixed_ns",))
        speeds = ("bytes_per_s", "both_bytes_per_s")
        constants[f"{direction} bytes_per_s"] = way.bytes_per_s.value, _of_link(device, direction, speeds)
    constants["launch_ns"] = device.launch_ns.value, lambda factor: _replaced(device, "launch_ns", factor)
    return constants


def _of_costs(device: DeviceProfile, name: str, fact: Fact[float] | FactOrNone[float]) -> _Scaled:
    return lambda factor: with_costs(device, **{name: _multiple(fact, factor, most=1 if "share" in name else None)})


def _of_link(device: DeviceProfile, direction: str, names: tuple[str, ...]) -> _Scaled:
    def scaled(factor: float) -> DeviceProfile:
        way = getattr(device.link, direction)
        facts = {name: _multiple(getattr(way, name), factor) for name in names}
        link = msgspec.structs.replace(device.link, **{direction: msgspec.structs.replace(way, **facts)})
        return msgspec.structs.replace(device, link=link)

    return scaled


def _replaced(device: DeviceProfile, name: str, factor: float) -> DeviceProfile:
    return msgspec.structs.replace(device, **{name: _multiple(getattr(device, name), factor)})


def _multiple(
    fact: Fact[float] | FactOrNone[float], factor: float, most: float | None = None
) -> Fact[float] | FactOrNone[float]:
    if fact.value is None:
        return fact
    value: float = fact.value * factor
    if isinstance(fact.value, int):
        value = max(round(value), 1)
    return msgspec.structs.replace(fact, value=value if most is None else min(value, most))
