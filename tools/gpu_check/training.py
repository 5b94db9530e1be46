"""The stages that train a network: in which ways, in how much time, and whether all of them compute the same."""

import dataclasses
import json
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from peers import WAYS
from record import GpuCheck, StageError
from workloads import UNADVISED, SizedNetwork, choose

ROWS = Path(__file__).with_name("rows.py")
_PEERS_PART = 0.35
"""Of a stage's time that the ways of others may take; umadvise has the rest."""
PERCENTS = (50, 33, 25, 100)
"""Budgets, the most important first."""
_DRY_PERCENTS = {"bert_large": (50, 100), "resnet50": (100,)}
"""Budgets of a dry run, by network: each one that shows something that no other has."""
_LONGEST_S = 100.0
_WARM_UP, _DRY_WARM_UP, _PEERS_WARM_UP = 9, 5, 3
"""The optimizer's state is made, a step is recorded, what runs again is chosen, that step is recorded and planned. On a
GPU two more have the layout made of them, and two more its ranges mapped. Nobody else needs more than three."""


def train(check: GpuCheck, *, network: str) -> Any:
    """One network in every way, in a size that managed memory may have."""
    limit_bytes = check.managed_limit_bytes()
    chosen = choose(network, limit_bytes, dry_run=check.small)
    if chosen is None:
        raise StageError(f"no size of {network} fits {limit_bytes} bytes")
    ours = our_rows(_DRY_PERCENTS[network] if check.small else PERCENTS)
    return train_rows(check, chosen, limit_bytes, peer_rows(), ours, peers_part=_PEERS_PART)


def train_rows(
    check: GpuCheck,
    network: SizedNetwork,
    limit_bytes: int,
    peers: Sequence[dict[str, Any]],
    ours: Sequence[dict[str, Any]],
    *,
    peers_part: float = 1.0,
    warm_up: int | None = None,
) -> Any:
    """Trains one network in the ways of others and of umadvise, and compares their losses.

    Args:
        check: the check that runs the processes.
        network: the network to train.
        limit_bytes: the limit of memory that the size was chosen for.
        peers: rows of others, the most important first; the first one is plain PyTorch.
        ours: rows of umadvise, in the same order.
        peers_part: part of the stage's time that the rows of others may take.
        warm_up: steps of umadvise that are not measured; None takes the usual number.

    Raises:
        StageError: a row failed, or a row's losses differ from plain PyTorch's.
    """
    data: dict[str, Any] = {
        "network": dataclasses.asdict(network),
        "limit_bytes": limit_bytes,
        "managed_limit_bytes": check.managed_limit_bytes(),
        "rows": [],
    }

    def keep(rows: list[dict[str, Any]]) -> None:
        check.keep({**data, "rows": data["rows"] + rows})

    ends_s, now_s = check.stage_ends_s, time.monotonic()
    for rows, until_s in ((peers, now_s + (ends_s - now_s) * peers_part), (ours, ends_s)):
        peaks = {row["name"]: row["peak_bytes"] for row in data["rows"] if row.get("peak_bytes")}
        data["rows"] += run_rows(check, data["network"], rows, until_s, peaks, keep=keep, warm_up=warm_up)
    compare_losses(data)
    return _judged(data)


# ---- which rows -----------------------------------------------------------------------------------------------------


def peer_rows() -> list[dict[str, Any]]:
    """What others do, the most important first."""
    return [peer_row(name) for name, peer in WAYS.items() if peer.usual]


def peer_row(way: str) -> dict[str, Any]:
    """The row of one way of others."""
    return {"name": way, "way": way}


def rung_row(rung: str, *, budget_percent: float | None = None, budget_of: str | None = None) -> dict[str, Any]:
    """The row of a rung in part of plain PyTorch's peak, or in the peak of another row."""
    from umadvise._native.abi import Memory
    from umadvise.devices.rungs import LADDER

    managed = rung == UNADVISED or LADDER[rung].memory == Memory.MANAGED
    budget = {"budget_percent": budget_percent, "budget_of": budget_of}
    where = f"{budget_percent:g} %" if budget_of is None else f"peak of {budget_of}"
    return {"name": f"{rung}, {where}", "rung": rung, "managed": managed, **budget}


def our_rows(percents: Sequence[int]) -> list[dict[str, Any]]:
    """Every rung of the ladder under every budget, the most important first.

    Everything must fit on the first rung, so it has no budget. Unified memory without advice comes last.

    Args:
        percents: budgets, in percent of the peak.
    """
    from umadvise.devices.rungs import LADDER, RESIDENT

    below = [policy.name for policy in reversed(LADDER.values()) if policy is not RESIDENT]
    rows = [rung_row(name, budget_percent=percent) for percent in percents for name in (*below, UNADVISED)]
    return [{"name": RESIDENT.name, "rung": RESIDENT.name}, *sorted(rows, key=lambda row: row["rung"] == UNADVISED)]


# ---- running them ---------------------------------------------------------------------------------------------------


def run_rows(
    check: GpuCheck,
    network: dict[str, Any],
    rows: Sequence[dict[str, Any]],
    ends_s: float,
    peaks: Mapping[str, int],
    program: Path = ROWS,
    keep: Callable[[list[dict[str, Any]]], object] = lambda _rows: None,
    warm_up: int | None = None,
) -> list[dict[str, Any]]:
    """What became of each row; where a process dies of one, the next process begins behind it.

    Args:
        check: the check that runs the processes.
        network: fields of the network to train.
        rows: the most important first; what there is no time for is dropped.
        ends_s: the end, by the monotonic clock.
        peaks: the peaks of rows that have run, by name, in bytes.
        program: the file that trains.
        keep: called now and then with the rows that there are.
        warm_up: steps of umadvise that are not measured; None takes the usual number.
    """
    results: list[dict[str, Any]] = []
    while len(results) < len(rows):
        left = rows[len(results) :]
        if time.monotonic() >= ends_s:
            results.extend(_without_result(row, "dropped", "no time was left") for row in left)
            break
        needed_bytes = next((row["needed_bytes"] for row in results if row.get("needed_bytes")), None)
        asked = {
            "network": network,
            "rows": list(left),
            "ends_s": ends_s,
            "peak_bytes": peaks.get("vanilla", needed_bytes),
            "peaks": {**peaks, **{row["name"]: row["peak_bytes"] for row in results if row.get("peak_bytes")}},
            **({} if warm_up is None or left[0].get("way") is not None or check.small else {"warm_up": warm_up}),
        }
        found, why = _process(check, asked, program, lambda found: keep(results + found))
        results.extend(found)
        if not found and why is None:
            why = "the process ended without a word"
        if why is not None and len(found) < len(left) and (not found or found[-1]["outcome"] != "failed"):
            results.append(_without_result(left[len(found)], "failed", why))
    return results


def _process(
    check: GpuCheck, asked: dict[str, Any], program: Path, keep: Callable[[list[dict[str, Any]]], object]
) -> tuple[list[dict[str, Any]], str | None]:
    """The rows that one process finished, and why it did not finish all of them."""
    written, assignment = check.scratch / "rows.jsonl", check.scratch / "rows.json"
    written.write_text("")

    def finished() -> list[dict[str, Any]]:
        """Rows whose line is whole."""
        *whole, _ = written.read_text().split("\n")
        return [json.loads(line) for line in whole]

    small, ours = check.small, asked["rows"][0].get("way") is None
    specification = {
        "on_gpu": not check.dry_run,
        "warm_up": _DRY_WARM_UP if small else _WARM_UP if ours else _PEERS_WARM_UP,
        "measured": 1 if small else 4,
        "row_s": 2.0 if small else 10.0,
        "longest_s": _LONGEST_S * check.patience,
        "managed_limit_bytes": check.managed_limit_bytes(),
        "results": str(written),
        **asked,
    }
    assignment.write_text(json.dumps(specification))
    why = None
    try:
        left_s = (asked["ends_s"] - time.monotonic()) / check.patience
        check.run([sys.executable, str(program), str(assignment)], within_s=left_s, watch=lambda: keep(finished()))
    except StageError as error:
        alarm = f"status {-signal.SIGALRM.value}"
        why = "stopped: it took too long" if alarm in str(error) else str(error)
    return finished(), why


def _without_result(row: dict[str, Any], outcome: str, reason: str) -> dict[str, Any]:
    return {"way": None, "rung": None, "budget_percent": None, **row, "outcome": outcome, "reason": reason}


# ---- judging them ---------------------------------------------------------------------------------------------------


def _ran(rows: Sequence[dict[str, Any]], name: str) -> dict[str, Any] | None:
    return next((row for row in rows if row["name"] == name and row["outcome"] == "ran"), None)


def compare_losses(data: dict[str, Any]) -> None:
    """Says of each row whether its losses are those of torch alone, to the last bit, as far as both go."""
    vanilla = _ran(data["rows"], "vanilla")
    for row in data["rows"]:
        row["same_losses"] = None
        if vanilla is not None and row["outcome"] == "ran":
            pairs = zip(row["losses_hex"], vanilla["losses_hex"], strict=False)
            row["same_losses"] = all(one == other for one, other in pairs)
    again = _ran(data["rows"], "vanilla again")
    data["vanilla_repeats"] = None if again is None else again["same_losses"]


def _judged(data: dict[str, Any]) -> Any:
    """The data, if no row has failed, and those that ought to compute what torch alone does have done so."""
    rows = data["rows"]
    failed = [row["name"] for row in rows if row["outcome"] == "failed"]
    ought = [row for row in rows if row["way"] is None or WAYS[row["way"]].same_losses]
    differing = [row["name"] for row in ought if row["same_losses"] is False]
    problems = []
    if failed:
        problems.append(f"failed: {'; '.join(failed)}")
    if differing:
        own = "" if data["vanilla_repeats"] else " (nor does vanilla torch repeat itself)"
        problems.append(f"losses differ from vanilla in: {'; '.join(differing)}{own}")
    if not any(row["outcome"] == "ran" for row in rows):
        problems.append("no row ran")
    if problems:
        raise StageError(", ".join(problems), data)
    return data
