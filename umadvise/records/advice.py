"""Advice: the five words of Choi and Lee, and what they mean to the driver.

The paper's spellings live only here. Inside there is one enumeration, in the words of the CUDA driver API.
Source: Choi and Lee, "Efficient Use of GPU Memory for Large-Scale Deep Learning Model Training", Applied Sciences
11(21), 2021, section 4 (`set_unified(advise)`, `to("cuda:readmostly")`).
"""

from dataclasses import dataclass

from umadvise.errors import InvalidAdviceError, UsageError
from umadvise.records.enums import Advice

PAPER_WORDS = {
    "noadvise": Advice.NONE,
    "preferredlocation": Advice.PREFERRED_LOCATION,
    "accessby": Advice.ACCESSED_BY,
    "readmostly": Advice.READ_MOSTLY,
    "prefetch": Advice.PREFETCH,
}
_OWN_WORDS = {advice.name.lower(): advice for advice in Advice}


def parse_advice(word: str | Advice) -> Advice:
    """The advice that a word means: one of the paper's five, or the driver's ("read_mostly").

    Raises:
        InvalidAdviceError: the word is neither; the message lists the five.
    """
    if isinstance(word, Advice):
        return word
    known = {**_OWN_WORDS, **PAPER_WORDS}
    if not isinstance(word, str) or word.lower() not in known:
        raise InvalidAdviceError(word, PAPER_WORDS)
    return known[word.lower()]


@dataclass(frozen=True, slots=True)
class Target:
    """What a device string like "cuda:0:readmostly" names: a device index and, where given, an advice."""

    index: int | None
    advice: Advice | None


def parse_target(text: str) -> Target | None:
    """Reads "cuda", "cuda:<index>", "cuda:<advice>" or "cuda:<index>:<advice>"; None for any other device.

    Raises:
        InvalidAdviceError: the advice is unknown.
        UsageError: there are more parts than that.
    """
    kind, *parts = text.split(":")
    if kind != "cuda":
        return None
    index = int(parts.pop(0)) if parts and parts[0].isdecimal() else None
    if len(parts) > 1:
        raise UsageError(f"cannot read device {text!r}: expected 'cuda', 'cuda:<index>', 'cuda:<advice>' or both")
    return Target(index, parse_advice(parts[0]) if parts else None)
