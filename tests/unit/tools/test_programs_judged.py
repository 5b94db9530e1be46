"""What the comparison of other people's programs says of runs that went wrong."""

from typing import Any

import comparing
import pytest
from comparing import compare, judge
from running import Program, Run

MIB = 1 << 20
TOLD = [("begin", "None"), ("loss", "0x1.8p+1"), ("model", "5ec3a3e9")]
REFUSAL = (
    "torch.OutOfMemoryError: no room for aten::mm of layers.0: its working set takes {} MiB ({} bytes) in chunks of "
    "2 MiB (2097152 bytes), and 30 MiB (31457280 bytes) beside it cannot leave; the budget is 32 MiB (33554432 bytes)"
)


def ran(make: Any, *, moved_bytes: int = MIB, step_count: int = 4, **changed: Any) -> Run:
    counters = make.counters(bytes_h2d=make.by_cause(coherence=moved_bytes))
    profile = make.profile(counters=counters, step_count=step_count)
    return Run(**{"code": 0, "told": TOLD, "seconds": 2.0, "profile": profile, "errors": "", **changed})


@pytest.fixture
def plain() -> Run:
    return Run(code=0, told=TOLD, seconds=1.0, profile=None, errors="")


def test_equal_to_the_last_bit(make: Any, plain: Run) -> None:
    cell = judge(ran(make), plain)
    assert (cell.verdict, cell.slowdown, cell.moved_bytes, cell.steps, cell.driven) == ("equal", 2.0, MIB, 4, None)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"told": [TOLD[0], ("loss", "0x1.8p+2"), TOLD[2]]}, "line 1 is loss 0x1.8p+2, of plain PyTorch loss 0x1.8p+1"),
        ({"told": TOLD[:2]}, "it told 2 lines"),
        ({"code": -11, "told": TOLD[:2], "errors": "Segmentation fault"}, "exit code -11: Segmentation fault"),
        ({"moved_bytes": 0}, "nothing moved"),
        ({"step_count": 0}, "no step was seen"),
        ({"profile": None}, "no step was seen"),
        # Refused for one op, but after another loss.
        ({"code": 1, "told": [("begin", "1")], "errors": REFUSAL.format(34, 34 * MIB)}, "line 0 is begin 1"),
    ],
)
def test_whatever_is_not_equal_has_failed(changed: dict[str, Any], why: str, make: Any, plain: Run) -> None:
    cell = judge(ran(make, **changed), plain, budget_bytes=32 * MIB)
    assert cell.verdict == "failed"
    assert why in cell.why


@pytest.mark.parametrize(("op", "verdict"), [(34, "one op"), (4, "small tensors")])
def test_refusals_have_one_of_two_reasons(op: int, verdict: str, make: Any, plain: Run) -> None:
    refused = ran(make, code=1, told=TOLD[:1], errors=REFUSAL.format(op, op * MIB))
    assert judge(refused, plain, budget_bytes=32 * MIB).verdict == verdict


STEP = "No op of this step needs more: a budget of {0} MiB ({1} bytes) does for it and for all like it"
POINT = "Up to this point a budget of {0} MiB ({1} bytes) does. Results and later ops may need more"


@pytest.mark.parametrize(
    ("refusals", "why"),
    [
        ([(STEP, 40)], ""),
        ([(POINT, 40)], ""),
        ([(POINT, 40), (POINT, 42), (STEP, 60)], ""),
        ([(STEP, 40), (STEP, 60)], "in the budget that its refusal names"),  # the first one has to run
        ([(POINT, 40), (POINT, 40)], "in the budget that its refusal names"),  # no end
        ([(POINT, 40), (STEP, 60), (POINT, 80)], "in the budget that its refusal names"),
    ],
)
def test_the_budget_that_a_refusal_names_has_to_run(
    refusals: list[tuple[str, int]], why: str, make: Any, plain: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets: list[int] = []
    errors = [f"{REFUSAL.format(34, 34 * MIB)}. {form.format(mib, mib * MIB)}" for form, mib in refusals]

    def run(_: Program, policy: str | None = None, budget_bytes: int | None = None) -> Run:
        if policy != "swap":
            return ran(make) if policy else plain
        budgets.append(budget_bytes or 0)
        refused = len(budgets) <= len(errors)
        return ran(make, code=1, told=TOLD[:1], errors=errors[len(budgets) - 1]) if refused else ran(make)

    monkeypatch.setattr(comparing, "run", run)
    monkeypatch.setattr(comparing, "POLICIES", ("resident", "swap"))
    monkeypatch.setattr(Run, "needed_bytes", 64 * MIB)
    cell = compare(Program("none.py"))["cells"]["swap"]
    assert (cell["verdict"], why in cell["why"]) == ("failed" if why else "one op", True)
    assert budgets[1:] == [mib * MIB for _, mib in refusals][: len(budgets) - 1]
