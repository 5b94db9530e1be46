"""What the interposer adds to an op, against torch alone and against a Python TorchDispatchMode, measured in one run.

    python tools/benchmark_interposer.py [--json FILE] [--ratios FILE]

Times are CPU time of the thread for one small op, the median over rounds; the three ways take turns within a round. All
tensors are on the emulated device and resident, so that the whole of the guard runs for each op. Then the same for ops
that follow a program, and for its actions.

A step visits blocks of one chunk each in turns, and does many small ops in each visit. Two of the blocks leave after
each of their visits and are back before the next one, in the shade of the visits to the others. What an action takes
beyond its copy, which a thread of the copy stream makes, is nearly all the emulated driver's: page tables, and threads
to wake. The executor's own part is what the C++ test `engine_actions` prints: it takes the time inside the driver's
calls away.
"""

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from harness import add_results, command_line, cpu_ns, write_results
from torch.utils._python_dispatch import BaseTorchDispatchMode

import umadvise
from umadvise import _native
from umadvise.recording.recorded_step import RecordedStep
from umadvise.records.plan import Action, ActionKind, Plan
from umadvise.torch_seam.runtime import current

ROUNDS = 15
OPS = 5000
GOAL_NS = 500
SETTLING = 3
BLOCKS = 8
MOVING = (0, 4)
VISITS = 6
OPS_A_VISIT = 200
OP_GOAL_NS = 1000
_BLOCK_BYTES = 2 << 20


def measure(op: Callable[[], object]) -> tuple[float, float, float]:
    """Medians for torch alone, with the interposer, and with the Python mode."""
    device = current().device
    rounds: list[tuple[float, float, float]] = []
    for _ in range(ROUNDS):
        _native.interpose(None)
        alone = cpu_ns(op, OPS)
        with BaseTorchDispatchMode():  # the least that a Python observer can do
            python = cpu_ns(op, OPS // 10)
        _native.interpose(device)
        rounds.append((alone, cpu_ns(op, OPS), python))
    return tuple(statistics.median(column) for column in zip(*rounds[1:], strict=True))


# ---- following a program --------------------------------------------------------------------------------------------


def _ops(views: list[torch.Tensor]) -> None:
    for _ in range(VISITS):
        for view in views:
            for _ in range(OPS_A_VISIT):
                view.neg_()


def _plan(step: RecordedStep) -> Plan:
    """Each moving block leaves after every visit, and comes back two visits to others before its own."""
    names = [step.trace.strings[name] for name in step.trace.storages.name.tolist()]
    length = BLOCKS * OPS_A_VISIT
    actions = []
    for block in MOVING:
        storage = names.index(str(block))
        for visit in range(VISITS):
            last = visit * length + (block + 1) * OPS_A_VISIT - 1
            back = (last + 1 + length - 3 * OPS_A_VISIT) % (VISITS * length)
            actions.append(Action(ActionKind.SWAP_OUT, last, storage, after=True, bytes=_BLOCK_BYTES))
            actions.append(Action(ActionKind.SWAP_IN, back, storage, bytes=_BLOCK_BYTES))
    actions.sort(key=lambda action: (action.op, action.after))
    return Plan.from_actions(step.trace, actions, planner="hand", budget_bytes=2 * BLOCKS * _BLOCK_BYTES)


def executor_rows() -> Iterator[dict[str, float | str]]:
    """Medians over rounds: ops alone, guarded, under a program, and actions.

    Raises:
        RuntimeError: steps were not followed, or actions not carried out.
    """
    model = torch.nn.ParameterList(torch.ones(_BLOCK_BYTES // 4) for _ in range(BLOCKS))
    device = umadvise.EmulatedDevice(capacity=4 * BLOCKS * _BLOCK_BYTES)
    with torch.no_grad(), umadvise.session(model, device=device, policy="swap:lru") as session:
        views = [block.detach()[:16] for block in model]
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


# ---- both -----------------------------------------------------------------------------------------------------------


def main() -> int:
    """Prints a row an op."""
    parser = command_line(__doc__)
    add_results(parser)
    options = parser.parse_args()
    umadvise.patch(device=umadvise.EmulatedDevice(capacity="64MiB"))
    first, second, result = torch.ones(16), torch.ones(16), torch.empty(16)
    matrix = torch.ones(8, 8)
    several = [torch.ones(16) for _ in range(20)]
    ops: dict[str, Callable[[], object]] = {
        "add(out=), 3 tensors": lambda: torch.add(first, second, out=result),
        "add_, in place": lambda: result.add_(first),
        "mm, allocates its output": lambda: torch.mm(matrix, matrix),
        "_foreach_add_, 20 tensors": lambda: torch._foreach_add_(several, 1.0),
    }
    rows: list[dict[str, Any]] = []
    with torch.no_grad():
        for name, op in ops.items():
            alone, interposed, python = measure(op)
            rows.append({"op": name, "alone_ns": alone, "interposed_ns": interposed, "torch_dispatch_mode_ns": python})
            ours = f"interposed +{interposed - alone:6,.0f} ns (x{interposed / alone:.2f}, goal at most +{GOAL_NS})"
            beside = f"TorchDispatchMode +{python - alone:8,.0f} ns (x{python / alone:.2f})"
            print(f"{name:28} alone {alone:8,.0f} ns   {ours}   {beside}", flush=True)
    umadvise.unpatch()
    executed = list(executor_rows())
    for each in executed:
        print(words(each), flush=True)
    ratios = {str(row["op"]): row["interposed_ns"] / row["alone_ns"] for row in rows}
    alone_ns, guarded_ns, followed_ns = (float(each["ns"]) for each in executed[:3])
    ratios["neg_, guarded, in chunks"] = 1 + guarded_ns / alone_ns
    ratios["neg_, following a program"] = 1 + followed_ns / alone_ns
    write_results(options, "umadvise.benchmark-interposer/2", ratios, rows=rows, executor=executed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
