"""Plans: kept in the order of execution, and refused where they cannot be executed."""

from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from umadvise.recording.builder import TraceBuilder
from umadvise.records.enums import Advice, Role
from umadvise.records.plan import OF_UNIFIED_MEMORY, Action, ActionKind, Actions, Plan, check
from umadvise.records.trace import Access, Trace


def three_ops() -> Trace:
    """Storage 0 is there before and stays; 1 is made inside op 0 and gone after op 1."""
    builder = TraceBuilder()
    weight = builder.allocate(1000, Role.PARAMETER)
    builder.begin_op("aten::mm")
    builder.access(weight, Access.READ)
    made = builder.allocate(500, Role.INTERMEDIATE)
    builder.access(made, Access.WRITE | Access.WHOLE)
    builder.end_op()
    builder.begin_op("aten::relu_")
    builder.access(made, Access.READ | Access.WRITE | Access.IN_PLACE)
    builder.end_op()
    builder.free(made)
    builder.begin_op("aten::sum")
    builder.access(weight, Access.READ)
    builder.end_op()
    return builder.finish(target="cpu", source="synthetic")


TRACE = three_ops()


def plan_of(*actions: Action) -> Plan:
    return Plan.from_actions(TRACE, actions, planner="test", budget_bytes=2000, options={"window": 3})


def test_actions_are_in_the_order_of_execution_and_those_of_one_anchor_keep_theirs() -> None:
    plan = plan_of(
        Action(ActionKind.SWAP_IN, 2, 0),
        Action(ActionKind.WAIT, 0, 0, after=True),
        Action(ActionKind.SWAP_OUT, 0, 0, after=True),
        Action(ActionKind.ADVISE, 0, 0, bytes=100, argument=Advice.READ_MOSTLY),
    )
    kinds = [action.kind for action in plan]
    assert kinds == [ActionKind.ADVISE, ActionKind.WAIT, ActionKind.SWAP_OUT, ActionKind.SWAP_IN]
    assert list(plan)[3] == Action(ActionKind.SWAP_IN, 2, 0, bytes=1000)
    assert len(plan) == 4
    assert plan.trace_digest == TRACE.structure_digest
    with pytest.raises(ValueError, match="read-only"):
        plan.actions.op[0] = 2


@pytest.mark.parametrize(
    ("action", "rule"),
    [
        (Action(ActionKind.SWAP_OUT, 3, 0), "no such op"),
        (Action(ActionKind.SWAP_OUT, -1, 0), "no such op"),
        (Action(ActionKind.SWAP_OUT, 0, 2), "no such storage"),
        (Action(ActionKind.SWAP_OUT, 0, 0, offset_bytes=8), "whole storages"),
        (Action(ActionKind.PREFETCH, 0, 0, offset_bytes=1000, bytes=1), "beyond its storage"),
        (Action(ActionKind.PREFETCH, 0, 0, offset_bytes=-1, bytes=1), "beyond its storage"),
        (Action(ActionKind.PREFETCH, 0, 0, argument=2), "argument: at most 1"),
        (Action(ActionKind.ADVISE, 0, 0, argument=9), "argument"),
        (Action(ActionKind.SWAP_OUT, 0, 1), "not alive"),
        (Action(ActionKind.SWAP_OUT, 1, 1, after=True), "not alive"),
        (Action(ActionKind.RECOMPUTE, 1, 1, argument=1), "an op before the anchor"),
        (Action(ActionKind.RECOMPUTE, 2, 0, argument=0), "cannot be made again"),
    ],
)
def test_nonsense_is_refused(action: Action, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        plan_of(action)


def test_a_storage_may_be_swapped_wherever_it_is_alive() -> None:
    plan_of(Action(ActionKind.SWAP_OUT, 0, 1, after=True), Action(ActionKind.SWAP_IN, 1, 1))


def with_actions(**columns: object) -> Plan:
    whole = {name: np.zeros(1) for name in Actions.DTYPES} | {"kind": [ActionKind.WAIT], "bytes": [1000]} | columns
    return Plan("test", 0, MappingProxyType({}), TRACE.structure_digest, Actions(**whole))  # type: ignore[arg-type]


def test_columns_are_checked_whole() -> None:
    check(with_actions(), TRACE)
    with pytest.raises(ValueError, match="columns of one length"):
        check(with_actions(op=[0, 0]), TRACE)
    with pytest.raises(ValueError, match="unknown kind"):
        check(with_actions(kind=[8]), TRACE)
    with pytest.raises(ValueError, match="0 or 1"):
        check(with_actions(after=[2]), TRACE)
    with pytest.raises(ValueError, match="not in the order"):
        check(with_actions(**{name: [1, 0] if name == "op" else [0, 0] for name in Actions.DTYPES}), TRACE)


def test_a_plan_of_another_trace_is_refused() -> None:
    plan = Plan("test", 0, MappingProxyType({}), "0" * 64, plan_of().actions)
    with pytest.raises(ValueError, match="another trace"):
        check(plan, TRACE)


INTEGERS = st.integers(-(2**63), 2**63 - 1)


@example((0, 1, 1, 1, 0, 0, 0))
@given(st.tuples(st.integers(0, 255), st.integers(-5, 5), st.integers(0, 3), st.integers(-5, 5), *[INTEGERS] * 3))
def test_whatever_is_accepted_lies_within_the_trace(row: tuple[int, ...]) -> None:
    plan = with_actions(**{name: [value] for name, value in zip(Actions.DTYPES, row, strict=True)})
    try:
        check(plan, TRACE)
    except ValueError:
        return
    (action,) = plan
    assert action.bytes is not None
    assert 0 <= action.offset_bytes <= action.offset_bytes + action.bytes <= TRACE.storages.bytes[action.storage]
    assert 0 <= action.op < 3
    before_its_end = {(1, True)} if action.kind in OF_UNIFIED_MEMORY else set()  # comes before what is freed there
    assert action.storage == 0 or (action.op, action.after) in {(0, True), (1, False)} | before_its_end
