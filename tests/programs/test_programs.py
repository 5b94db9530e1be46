"""Other people's programs in half of the memory that they need: as with plain PyTorch, to the last bit."""

import json
import re

import pytest
from comparing import compare
from programs import FOUND, IN_CI, KNOWN, PROGRAMS
from telling import SHORT


@pytest.mark.parametrize("name", IN_CI if SHORT else PROGRAMS)
def test_it_is_equal_or_refused_for_a_reason_that_is_known(name: str) -> None:
    found = compare(PROGRAMS[name])
    if not SHORT:
        FOUND.mkdir(parents=True, exist_ok=True)
        (FOUND / (re.sub(r"\W+", "-", name) + ".json")).write_text(json.dumps({"name": name, **found}, indent=1))
    verdicts = {policy: cell["verdict"] for policy, cell in found["cells"].items()}
    expected = {policy: KNOWN.get((name, policy), "equal") for policy in verdicts}
    wrong = {
        policy: found["cells"][policy]
        for policy, verdict in verdicts.items()
        if verdict not in (expected[policy], "one op")
    }
    assert not wrong, json.dumps(wrong, indent=1)
