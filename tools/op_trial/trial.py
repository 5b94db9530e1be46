"""One subject, run plain and where everything leaves, and what differs."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from op_trial.bits import Frozen
from op_trial.cases import OpCase, Raised, seed_all
from op_trial.places import MIB, Leaving, Place, Plain
from op_trial.subjects import OpSubject

_SAMPLES_AT_ONCE = 2
_FILLS, _MORE_FILLS = (0x5A, 0xA7), (0xFF, 0x00, 0x33)
"""For memory that nobody wrote."""
_BUDGETS_BYTES = (64 * MIB, 512 * MIB)
"""The second where the first does not hold all that one op needs at once, in chunks of 2 MiB."""
_REFUSED = "raised OutOfMemoryError"
Left = dict[str, list[Frozen]]


@dataclass
class OpOutcome:
    """What was found.

    Attributes:
        subject: the subject's name.
        samples: the number of samples.
        calls: the number of calls, variants included.
        comparisons: values that were compared.
        differences: what differs, in words.
        unrepeated: values that plain torch does not repeat itself, by name; they were not compared.
        raised: calls that raise in plain torch and here, the same.
        departures: how often everything left the device.
        swap_ins: copies that brought a tensor back.
        moved: tensors that were in ordinary memory when they should have left, and were moved onto the device.
        elsewhere: those that could not be moved, and never left.
    """

    subject: str
    samples: int = 0
    calls: int = 0
    comparisons: int = 0
    differences: list[str] = field(default_factory=list)
    unrepeated: list[str] = field(default_factory=list)
    raised: int = 0
    departures: int = 0
    swap_ins: int = 0
    moved: int = 0
    elsewhere: int = 0


def examine(subject: OpSubject, most_samples: int | None = None) -> OpOutcome:
    """Runs a subject twice in plain torch and once where everything leaves; where it differs, in plain torch again.

    Args:
        subject: what is run.
        most_samples: so many are run, the first ones; None: all.
    """
    outcome = OpOutcome(subject.name)
    plain = [_run_plain(subject, fill, most_samples) for fill in _FILLS]
    for budget_bytes in _BUDGETS_BYTES:
        found = _run_leaving(subject, budget_bytes, most_samples, outcome)
        if not any(value.words == _REFUSED for values in found.values() for value in values):
            break
    if any(not _same(values, found.get(name)) for name, values in plain[0].items()):
        plain += [_run_plain(subject, fill, most_samples) for fill in _MORE_FILLS]
    outcome.samples = len({name.partition(" ")[0] for name in plain[0]})
    outcome.calls = sum(name.endswith(": result") for name in plain[0])
    compare(plain, found, outcome)
    return outcome


def _run_plain(subject: OpSubject, fill: int, most_samples: int | None) -> Left:
    with Plain(fill) as place:
        return run(subject, place, most_samples)


def _run_leaving(subject: OpSubject, budget_bytes: int, most_samples: int | None, outcome: OpOutcome) -> Left:
    with Leaving(budget_bytes) as place:
        found = run(subject, place, most_samples)
        counters = place.counters()
    outcome.departures, outcome.moved, outcome.elsewhere = place.departures, place.moved, place.elsewhere
    outcome.swap_ins = counters.swap_ins
    return found


def run(subject: OpSubject, place: Place, most_samples: int | None) -> Left:
    """What a subject's cases leave there, by sample, case and part."""
    left: Left = {}
    seed_all()
    samples = enumerate(islice(_samples(subject, left), most_samples))
    while rows := list(islice(samples, _SAMPLES_AT_ONCE)):
        cases = [(f"{number} ", case) for number, row in rows for case in row]
        for sample, case in _in_parts(cases, place):
            left |= {sample + name: values for name, values in case.left(place.copy).items()}
    return left


def _samples(subject: OpSubject, left: Left) -> Iterator[list[OpCase]]:
    try:
        yield from subject.samples()
    except Exception as error:
        left["samples"] = [Raised(error).frozen()]


def _in_parts(cases: list[tuple[str, OpCase]], place: Place) -> list[tuple[str, OpCase]]:
    """Runs cases with everything away before each of their parts, and afterwards."""

    def everything_leaves(those: list[tuple[str, OpCase]]) -> None:
        for _, case in those:
            place.take_in(case.tensors())
        place.send_away()

    everything_leaves(cases)
    for _, case in cases:
        case.forward()
    followers = [(sample, case.follow(case.result)) for sample, case in cases if case.follow and case.is_whole]
    later = [(sample, case) for sample, case in followers if case is not None]
    everything_leaves(cases + later)
    for _, case in cases:
        case.backward()
    for _, case in later:
        case.forward()
    everything_leaves(cases + later)
    return cases + later


def compare(plain: list[Left], found: Left, outcome: OpOutcome) -> None:
    """Writes down what differs.

    Args:
        plain: what runs in plain torch left; what they do not agree on is not compared.
        found: what was left where everything leaves.
        outcome: what takes the differences and counts.
    """
    expected = plain[0]
    for name, values in expected.items():
        if not all(_same(values, again.get(name)) for again in plain[1:]):
            outcome.unrepeated.append(name)
            continue
        outcome.comparisons += sum(value.copy is not None for value in values)
        outcome.raised += values[0].words.startswith("raised ") if values else 0
        if not _same(values, found.get(name)):
            outcome.differences.append(f"{name}: {_in_words(values)}, but {_in_words(found.get(name))}")
    outcome.differences += [f"{name}: only there" for name in found.keys() - expected.keys()]


def _same(values: list[Frozen], others: list[Frozen] | None) -> bool:
    if others is None or len(values) != len(others):
        return False
    return all(one.same(other) for one, other in zip(values, others, strict=True))


def _in_words(values: list[Frozen] | None) -> str:
    return "nothing" if values is None else "; ".join(value.words + value.note for value in values)[:300]
