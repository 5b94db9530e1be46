"""What following a plan adds to an op and takes for an action: CPU time of the thread that runs the ops.

A step visits blocks of one chunk each in turns, and does many small ops in each visit. Two of the blocks leave after
each of their visits and are back before the next one, in the shade of the visits to the others. What an action takes
beyond its copy, which a thread of the copy stream makes, is nearly all the emulated driver's: page tables, and threads
to wake. The executor's own part is what the C++ test `engine_actions` prints: it takes the time inside the driver's
calls away.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence

import torch
from harness import cpu_ns

import umadvise
from umadvise import _native
from umadvise.recording.recorded_step import RecordedStep
from umadvise.records.plan import Action, ActionKind, Plan
from umadvise.records.trace import Trace
from umadvise.torch_seam.runtime import current

ROUNDS = 15
SETTLING = 3
BLOCKS = 8
MOVING = (0, 4)
VISITS = 6
OPS_A_VISIT = 200
OP_GOAL_NS = 1000
_BLOCK_BYTES = 2 << 20


class _Blocks(torch.nn.Module):
    """Parameters of one chunk each."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ParameterList(torch.ones(_BLOCK_BYTES // 4) for _ in range(BLOCKS))


def _ops(views: list[torch.Tensor]) -> None:
    for _ in range(VISITS):
        for view in views:
            for _ in range(OPS_A_VISIT):
                view.neg_()


def _plan(step: RecordedStep) -> Plan:
    """Each moving block leaves after every visit, and comes back two visits to others before its own."""
    storages = _storages(step.trace)
    length = BLOCKS * OPS_A_VISIT
    actions = []
    for block in MOVING:
        for visit in range(VISITS):
            last = visit * length + (block + 1) * OPS_A_VISIT - 1
            back = (last + 1 + length - 3 * OPS_A_VISIT) % (VISITS * length)
            actions.append(Action(ActionKind.SWAP_OUT, last, storages[block], after=True, bytes=_BLOCK_BYTES))
            actions.append(Action(ActionKind.SWAP_IN, back, storages[block], bytes=_BLOCK_BYTES))
    actions.sort(key=lambda action: (action.op, action.after))
    return Plan.from_actions(step.trace, actions, planner="hand", budget_bytes=2 * BLOCKS * _BLOCK_BYTES)


def _storages(trace: Trace) -> list[int]:
    names = [trace.strings[name] for name in trace.storages.name.tolist()]
    return [names.index(f"blocks.{block}") for block in range(BLOCKS)]


def rows() -> Iterator[dict[str, float | str]]:
    """Medians over rounds: ops alone, guarded, under a program, and actions.

    Raises:
        RuntimeError: steps were not followed, or actions not carried out.
    """
    model = _Blocks()
    device = umadvise.EmulatedDevice(capacity=4 * BLOCKS * _BLOCK_BYTES)
    with torch.no_grad(), umadvise.session(model, device=device, policy="swap:lru") as session:
        views = [block.detach()[:16] for block in model.blocks]
        cycle = session._open_loop().cycle

        def in_step(make_plan: Callable[[RecordedStep], Plan | None] | None) -> float:
            cycle.change(make_plan)
            for _ in range(SETTLING + 1):  # a program that is new is not in the processor's caches yet
                with session.step():
                    took = cpu_ns(lambda: _ops(views))
            if make_plan is not None and not cycle.followed:
                raise RuntimeError("a step was not followed: expected all of them to be alike")
            return took

        while cycle.program is None:
            with session.step():
                _ops(views)
        before = session.swap_counters()
        found = [(_alone(views), in_step(None), in_step(lambda _: None), in_step(_plan)) for _ in range(ROUNDS)]
        after = session.swap_counters()
        done = after.actions - before.actions + after.redundant_actions - before.redundant_actions
        if done < ROUNDS * (SETTLING + 1) * 2 * len(MOVING) * VISITS:
            raise RuntimeError(f"{done} actions were carried out, {after.skipped_actions} skipped: expected all")
    alone, guarded, followed, planned = zip(*found[1:], strict=True)
    ops, actions = VISITS * BLOCKS * OPS_A_VISIT, 2 * len(MOVING) * VISITS
    yield {"row": "neg_ of 16 numbers, torch alone", "ns": statistics.median(alone) / ops}
    yield {"row": "guarded, in chunks", "ns": _more(guarded, alone) / ops}
    yield {"row": "the same, following a program", "ns": _more(followed, alone) / ops, "goal_ns": OP_GOAL_NS}
    yield {"row": "an action, the emulated driver's part included", "ns": _more(planned, followed) / actions}


def _more(steps: Sequence[float], than: Sequence[float]) -> float:
    """The median over rounds."""
    return statistics.median(one - other for one, other in zip(steps, than, strict=True))


def _alone(views: list[torch.Tensor]) -> float:
    _native.interpose(None)
    took = cpu_ns(lambda: _ops(views))
    _native.interpose(current().device)
    return took


def words(row: dict[str, float | str]) -> str:
    """A row for people."""
    goal = f"   goal at most {row['goal_ns']:,.0f} ns" if "goal_ns" in row else ""
    return f"{row['row']:46} {row['ns']:10,.0f} ns{goal}"
