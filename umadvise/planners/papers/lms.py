"""The planner `lms`: large model support, as released for TensorFlow (TFLMS, version 2).

Source: Le, Imai, Negishi and Kawachiya 2018, and 2019 ("Automatic GPU memory management for large neural models in
TensorFlow", ISMM 2019, doi:10.1145/3315573.3329984).

Ops have levels: those of level 0 depend on no other op, those of level 1 on ops of level 0, and so on. A tensor that is
used again more than `swapout_threshold` levels after it was made leaves when it has been made, and comes back
`swapin_ahead` levels before that use. The planner counts in levels and bytes; it has no notion of time.

TFLMS rewrites a graph, in which tensors are written once and ops are ordered by levels alone. Here a step is ops in an
order, and storages that ops may write again. So it is decided:

- The tensor is what a storage holds between two writes; the source is the op that wrote it. What an op overwrites whole
  is dropped like a tensor without consumers, and needs no swap-in.
- Candidates are what TFLMS takes for outputs of GPU ops: storages made within the step. Those of before (variables,
  optimizer states) and those that the host writes or reads (inputs, losses) stay. TFLMS leaves tensors of rank 0 and 1;
  a trace knows no ranks, so storages below 64 KiB stay.
- A tensor leaves after the last op, in the trace's order, that is within the threshold: there alone its memory can be
  free. A consumer beyond the threshold that comes before that op uses it as it is.
- Of the ops that may trigger a swap-in the one on the longest chain to the consumer is taken. There is one on every
  level, so that looking back ten levels for one is not needed. It must come after the op at which the tensor leaves:
  where it does not, nothing triggers it, and the swap-in is synchronous, as in TFLMS.
- Ops of one level run one after the other, as the option `serialization` brings about; it has no counterpart here.
- The tuner's answers must keep the budget at every op of the trace too, not in its own simulator alone.
"""

from dataclasses import asdict, replace

import numpy as np

from umadvise.errors import BudgetError
from umadvise.planners import check_range
from umadvise.planners.papers.lms_graph import (
    SEQUENTIAL,
    SYNCHRONOUS_IN,
    SYNCHRONOUS_OUT,
    LevelGraph,
    LevelSwaps,
    Settings,
)
from umadvise.planners.step_graph import step_graph
from umadvise.records.device import DeviceProfile
from umadvise.records.plan import Action, ActionKind, Plan
from umadvise.records.trace import Trace
from umadvise.records.units import format_bytes

MEMORY_RATIO = 0.9
"""Part of the memory beside the variables that the tuner's simulator may fill (TFLMS, TF_LMS_SIMULATOR_MEM_RATIO)."""


def lms(
    trace: Trace,
    _device: DeviceProfile,
    budget_bytes: int,
    *,
    swapout_threshold: int | None = None,
    swapin_ahead: int | None = None,
    swapin_groupby: int | None = None,
    sync_mode: int | None = None,
) -> Plan:
    """Plans swaps by distances in levels. An option that is None is tuned, as TFLMS tunes it: see `_Tuner`.

    Args:
        trace: trace of one training step.
        budget_bytes: bytes that tensors may take on the device.
        swapout_threshold: number of levels: a tensor leaves that is used again more than so many levels after it was
            made.
        swapin_ahead: number of levels: a tensor comes back when an op more than so many levels before its consumer has
            run; -1 (`SEQUENTIAL`) takes the level of the consumer before.
        swapin_groupby: number of levels: consumers that are no further apart share a swap-in; 0: none do.
        sync_mode: what ops wait for: 0 nothing, 1 swap-outs, 2 swap-ins, which then start just before the op that
            needs them, 3 both.

    Raises:
        BudgetError: no setting, or not this one, keeps the budget.
        UsageError: an option is out of its range.
    """
    check_range("swapout_threshold", swapout_threshold, 0)
    check_range("swapin_ahead", swapin_ahead, SEQUENTIAL)
    check_range("swapin_groupby", swapin_groupby, 0)
    check_range("sync_mode", sync_mode, 0, 3)
    step_graph(trace).require_room(budget_bytes)
    graph = LevelGraph(trace)
    given = (swapout_threshold, swapin_ahead, swapin_groupby, sync_mode)
    if None in given:
        settings = _Tuner(graph, budget_bytes).tune(given)
    else:
        settings = Settings(*(each for each in given if each is not None))
        needed_bytes = graph.peak_bytes(graph.swaps(settings))
        if needed_bytes > budget_bytes:
            raise BudgetError(
                f"lms with {_words(settings)} needs {format_bytes(needed_bytes)}; the budget is "
                f"{format_bytes(budget_bytes)}: give at least that, or leave out options, which are then tuned"
            )
    actions = _actions(graph.swaps(settings), settings.sync_mode)
    return Plan.from_actions(trace, actions, planner="lms", budget_bytes=budget_bytes, options=asdict(settings))


def _words(settings: Settings) -> str:
    return ", ".join(f"{name} {value}" for name, value in asdict(settings).items())


def _actions(swaps: LevelSwaps, sync_mode: int) -> list[Action]:
    """In the order in which those of one anchor are to be executed: what leaves makes room for what comes."""
    by_need = np.argsort(swaps.dest, kind="stable")
    columns = (swaps.storage, swaps.last, swaps.dest, swaps.trigger, swaps.copied, swaps.synchronous)
    leaving, arriving = [], []
    for storage, last, dest, trigger, copied, synchronous in zip(
        *(each[by_need].tolist() for each in columns), strict=True
    ):
        if not copied:
            leaving.append(Action(ActionKind.DROP, last, storage, after=True))
            continue
        leaving.append(Action(ActionKind.SWAP_OUT, last, storage, after=True))
        if sync_mode & SYNCHRONOUS_OUT:
            leaving.append(Action(ActionKind.WAIT, last, storage, after=True))
        if synchronous:
            arriving.append(Action(ActionKind.SWAP_IN, dest, storage))
            arriving.append(Action(ActionKind.WAIT, dest, storage))
        else:
            arriving.append(Action(ActionKind.SWAP_IN, trigger, storage, after=True))
    return leaving + arriving


class _Tuner:
    """TFLMS's search, in its order: each option as large as its simulator allows, with as little waiting as it does.

    Does the step fit as it is? Else: the least `sync_mode` with which the smallest threshold fits; the largest
    threshold; the largest `swapin_ahead`; a `swapin_groupby` that joins all, or else the first that halving finds. The
    searches halve as if whatever fits with a value fitted with all smaller ones, which need not be so.
    """

    def __init__(self, graph: LevelGraph, budget_bytes: int) -> None:
        self.graph = graph
        self.budget_bytes = budget_bytes
        self.most_bytes = (budget_bytes - graph.lasting_bytes) * MEMORY_RATIO

    def tune(self, given: tuple[int | None, int | None, int | None, int | None]) -> Settings:
        """Every option a value.

        Raises:
            BudgetError: nothing that the tuner tries fits.
        """
        levels = max(self.graph.levels.count, 1)
        swapout_threshold, swapin_ahead, swapin_groupby, sync_mode = given
        least = (1, 1, 0, 0)
        tightest = Settings(*(low if each is None else each for each, low in zip(given, least, strict=True)))
        if swapout_threshold is swapin_ahead is swapin_groupby is None:
            resident = replace(tightest, swapout_threshold=levels)
            if self._fits(resident):
                return resident
        settings = self._least_waiting(tightest, 3 if sync_mode is None else sync_mode)
        if swapout_threshold is None:
            settings = self._largest(settings, "swapout_threshold")
        if settings.sync_mode & SYNCHRONOUS_IN:  # then swap-ins have no time before their consumer
            return settings
        if swapin_ahead is None:
            settings = self._largest(settings, "swapin_ahead")
        if swapin_groupby is None:
            all_joined = replace(settings, swapin_groupby=levels)
            settings = all_joined if self._fits(all_joined) else self._largest(settings, "swapin_groupby", first=True)
        return settings

    def _least_waiting(self, settings: Settings, last_mode: int) -> Settings:
        for mode in range(settings.sync_mode, last_mode + 1):
            trial = replace(settings, sync_mode=mode)
            if self._fits(trial):
                return trial
        swaps = self.graph.swaps(trial)
        replayed_bytes = int(self.graph.replayed_peak_bytes(swaps, trial) / MEMORY_RATIO) + 1
        needed_bytes = max(self.graph.peak_bytes(swaps), self.graph.lasting_bytes + replayed_bytes)
        raise BudgetError(
            f"lms finds no setting for {format_bytes(self.budget_bytes)}: with {_words(trial)} its tuner, which keeps "
            f"a tenth back, asks for {format_bytes(needed_bytes)}; give at least that, or all four options"
        )

    def _largest(self, settings: Settings, option: str, *, first: bool = False) -> Settings:
        """Halves the range of an option; with `first` the first value that fits will do."""
        low, high = 0 if first else 1, self.graph.levels.count
        while low <= high:
            middle = (low + high) // 2
            trial = replace(settings, **{option: middle})
            if not self._fits(trial):
                high = middle - 1
                continue
            settings, low = trial, middle + 1
            if first:
                break
        return settings

    def _fits(self, settings: Settings) -> bool:
        swaps = self.graph.swaps(settings)
        if self.graph.peak_bytes(swaps) > self.budget_bytes:
            return False
        return self.graph.replayed_peak_bytes(swaps, settings) < self.most_bytes
