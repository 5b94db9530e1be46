"""Other people's programs in half of the memory that they need: as with plain PyTorch, to the last bit."""

import json
import re

import pytest
from comparing import POLICIES, compare, judge
from programs import FOUND, IN_CI, PROGRAMS
from running import Program, run
from telling import SHORT

IN_TURN = {name: (POLICIES[0], POLICIES[1 + index % 4]) for index, name in enumerate(IN_CI)}
"""What CI runs of each: resident, and one of the four policies that move memory."""


@pytest.mark.parametrize("name", IN_CI if SHORT else PROGRAMS)
def test_it_is_equal_or_refused_for_one_op_that_is_too_large(name: str) -> None:
    found = compare(PROGRAMS[name], IN_TURN[name] if SHORT else POLICIES)
    if not SHORT:
        FOUND.mkdir(parents=True, exist_ok=True)
        (FOUND / (re.sub(r"\W+", "-", name) + ".json")).write_text(json.dumps({"name": name, **found}, indent=1))
    wrong = {policy: cell for policy, cell in found["cells"].items() if cell["verdict"] not in ("equal", "one op")}
    assert not wrong, json.dumps(wrong, indent=1)


def test_a_planted_breach_is_caught() -> None:
    program = Program("../integration/over_budget.py", ("emulated",), session=True)
    kept, exceeded = run(program), run(Program(program.file, ("emulated", "planted"), session=True))
    assert kept.code == 0, kept.errors
    cell = judge(exceeded, kept)
    assert cell.verdict == "failed"
    assert "over budget: " in cell.why
