"""A program under every policy beside plain PyTorch, and what is to be said of each."""

import re
from dataclasses import asdict, dataclass
from typing import Any

from budget_watch import FAILED as OVER_BUDGET
from running import Program, Run, run

PART = 0.5
"""Of what a program needs, what it is given."""
POLICIES = ("resident", "advise", "window", "swap", "auto")
"""Resident has all that the device has: it is what measures the need."""
BLOCK_BYTES = 2 << 20
_REFUSED = re.compile(
    r"no room for (.+?): its working set takes (.+?) \((\d+) bytes\) in chunks of .+?, and (.+?) beside it cannot leave"
)

_NAMED = re.compile(r"a budget of .+? \((\d+) bytes\) does")
_PARTIAL = "later ops may need more"
"""A refusal says so if it knows no whole step."""


@dataclass(frozen=True)
class Cell:
    """What became of a program under a policy.

    Attributes:
        verdict: "equal", "one op", "small tensors", or "failed".
        why: in words, where it is not equal.
        slowdown: its time over plain PyTorch's; 0.0 where it did not end.
        moved_bytes: between device and host.
        steps: that umadvise saw.
        driven: of these, by a plan to their ends; None where none was to be.
    """

    verdict: str
    why: str = ""
    slowdown: float = 0.0
    moved_bytes: int = 0
    steps: int = 0
    driven: int | None = None


def compare(program: Program, policies: tuple[str, ...] = POLICIES) -> dict[str, Any]:
    """Runs it plain, resident and under the other policies; what the table and the test want to know."""
    plain = run(program)
    if plain.code != 0 or len(plain.told) < 2:
        raise AssertionError(f"plain PyTorch cannot run it: {plain.errors}")
    resident = run(program, "resident")
    cells = {"resident": judge(resident, plain, moves=False)}
    found: dict[str, Any] = {"plain_s": plain.seconds, "needed_bytes": 0}
    if resident.profile is not None:
        found["needed_bytes"] = resident.needed_bytes
        budget_bytes = round(PART * resident.needed_bytes) // BLOCK_BYTES * BLOCK_BYTES
        for policy in policies[1:]:
            ran = run(program, policy, budget_bytes)
            cell = judge(ran, plain, budget_bytes=budget_bytes)
            cells[policy] = _advised(program, policy, ran, plain) or cell if cell.verdict == "one op" else cell
    return {**found, "cells": {policy: asdict(cell) for policy, cell in cells.items()}}


def judge(ran: Run, plain: Run, *, moves: bool = True, budget_bytes: int = 0) -> Cell:
    """Equal to the last bit, refused in words up to there, or failed."""
    if ran.code == OVER_BUDGET:  # a refusal too is within the budget until then
        return Cell("failed", ran.errors[-1500:])
    pairs = list(zip(ran.told, plain.told, strict=False))
    different = next((index for index, (one, other) in enumerate(pairs) if one != other), None)
    if different is not None:
        one, other = pairs[different]
        return Cell("failed", f"line {different} is {' '.join(one)}, of plain PyTorch {' '.join(other)}")
    if ran.code != 0:
        return _refused(ran.errors, budget_bytes) or Cell("failed", f"exit code {ran.code}: {ran.errors[-1500:]}")
    if len(ran.told) != len(plain.told):
        return Cell("failed", f"it told {len(ran.told)} lines, plain PyTorch {len(plain.told)}")
    if ran.profile is None or ran.profile.step_count == 0:
        return Cell("failed", "no step was seen, so its report is empty")
    if moves and ran.moved_bytes == 0:
        return Cell("failed", "nothing moved, so it shows nothing: make it larger")
    planned = ran.profile.planned
    return Cell(
        "equal",
        slowdown=ran.seconds / plain.seconds,
        moved_bytes=ran.moved_bytes,
        steps=ran.profile.step_count,
        driven=None if planned is None else planned.driven,
    )


def _advised(program: Program, policy: str, refused: Run, plain: Run) -> Cell | None:
    """What is wrong with the budgets that refusals name; None: the last one runs, or the refusal names none.

    The first one runs, unless the refusal said that it knew only what the program had used until then.
    """
    named_bytes = _named_bytes(refused)
    while named_bytes is not None:
        ran = run(program, policy, named_bytes)
        again = judge(ran, plain, moves=False)
        if again.verdict == "equal":
            return None
        next_bytes = _named_bytes(ran) if _PARTIAL in refused.errors else None
        if next_bytes is None or next_bytes <= named_bytes:
            return Cell("failed", f"in the budget that its refusal names: {again.why}")
        refused, named_bytes = ran, next_bytes
    return None


def _named_bytes(refused: Run) -> int | None:
    named = _NAMED.search(refused.errors)
    return None if named is None else int(named[1])


def _refused(errors: str, budget_bytes: int) -> Cell | None:
    found = _REFUSED.search(errors)
    if found is None:
        return None
    op, takes, bytes_, beside = found.groups()
    if int(bytes_) > budget_bytes:
        return Cell("one op", f"{op} works on {takes} at once")
    return Cell(
        "small tensors", f"{op} works on {takes} at once, and {beside} beside it cannot leave, in small tensors"
    )
