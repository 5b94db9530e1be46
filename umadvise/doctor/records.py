"""A diagnosis as data: what was looked at, and what follows for the user."""

from collections.abc import Mapping
from typing import Literal

import msgspec

SCHEMA = "umadvise.doctor/1"

State = Literal["ok", "limited", "missing"]
Fact = int | float | str | bool | None


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at.

    Attributes:
        name: the thing's name.
        state: "ok"; "limited", where the thing is there but something is in its way; or "missing".
        found: a sentence about what was found.
        remedy: what to do about it; None where there is nothing to do.
        facts: what was found, as data by name; None is unknown.
    """

    name: str
    state: State
    found: str
    remedy: str | None = None
    facts: Mapping[str, Fact] = {}

    @property
    def ok(self) -> bool:
        """Whether nothing is in its way."""
        return self.state == "ok"


class Ability(msgspec.Struct, frozen=True):
    """One thing that umadvise does.

    Attributes:
        name: what it is.
        works: whether it does here.
        because: why not, or with which restriction; None where it simply works.
    """

    name: str
    works: bool
    because: str | None = None


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was looked at on a machine, and what works there."""

    schema: str = SCHEMA
    umadvise_version: str
    system: str
    checks: tuple[Check, ...]
    abilities: tuple[Ability, ...]
