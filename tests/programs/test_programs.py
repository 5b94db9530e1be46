"""Other people's programs in half of the memory that they need: as with plain PyTorch, to the last bit."""

import json
import re

import pytest
from comparing import compare, judge
from programs import FOUND, IN_CI, PROGRAMS
from running import Program, run
from telling import SHORT


@pytest.mark.parametrize("name", IN_CI if SHORT else PROGRAMS)
def test_it_is_equal_or_refused_for_one_op_that_is_too_large(name: str) -> None:
    found = compare(PROGRAMS[name])
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
