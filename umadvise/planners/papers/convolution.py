"""The two algorithms of convolutions of vDNN (Rhu et al. 2016): the fastest needs a workspace, implicit GEMM none.

The fastest is the tiled FFT of cuDNN 4, for the convolutions that it can do: those of stride 1 with more than one
weight a map. Its workspace holds input, output and filters in the frequency domain: for each map a complex number for
half of the points of each square tile. Tiles have the smallest power of two that holds the padded image, 32 at most;
neighbours overlap by the filter's size less 1. For the untiled algorithm the same count, with a tile of 256 or 128,
gives 90 % of what cuDNN itself asked for in two logs of Theano (pull request 6348: 37,502,976 and 9,445,376).

A trace keeps bytes and FLOPs, no shapes; what the workspace needs follows from them. Its durations are those of the
fastest algorithm, whose speed is what efficiencies of devices are about.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from umadvise.planners.step_graph import step_graph
from umadvise.records.enums import Phase, Role
from umadvise.records.trace import ARITHMETIC, Access, EventKind, Events, OpClass, Storages, Trace, event_positions

SPEED_RATIO = 1.9
"""Time of implicit GEMM in units of the tiled FFT's: the one number that explains vDNN's figure 12 on a K40 nearly
alone. Set from `all` with memory-optimal algorithms on VGG-16 (128), which loses 49 %."""
_COMPLEX_BYTES = 8
_SMALLEST_TILE, _LARGEST_TILE = 16, 32
_LARGEST_KERNEL = 15
_ROUNDING = 1e-6


def tiled_fft_bytes(batch: int, inputs: int, outputs: int, side: float, kernel: int) -> int:
    """Bytes of workspace that the tiled FFT takes for one convolution of stride 1.

    Args:
        batch: number of images.
        inputs: number of input maps of an image.
        outputs: number of output maps of an image.
        side: length of an output map's side, or the square root of its area.
        kernel: length of a filter's side; at most 15.
    """
    padded = side + kernel - 1
    tile = _SMALLEST_TILE
    while tile < min(padded, _LARGEST_TILE):
        tile *= 2
    tiles = 1 if tile >= padded else math.ceil(side / (tile - kernel + 1) - _ROUNDING) ** 2
    maps_in_frequency = tiles * batch * (inputs + outputs) + inputs * outputs
    return maps_in_frequency * tile * (tile // 2 + 1) * _COMPLEX_BYTES


def workspace_bytes(trace: Trace) -> NDArray[np.int64]:
    """For each op the bytes of its fastest algorithm's workspace; 0 where it has none, or the trace has it already."""
    result = np.zeros(len(trace.ops), np.int64)
    recorded = set(trace.births[step_graph(trace).transient].tolist())
    batch = _batch(trace)
    of_operands: dict[tuple[int, int], int] = {}
    for op in np.flatnonzero(trace.ops.op_class == OpClass.CONVOLUTION).tolist():
        storages = trace.accesses.storage[trace.first_access[op] : trace.first_access[op + 1]].tolist()
        if trace.ops.phase[op] == Phase.BACKWARD:
            found = [of_operands[pair] for pair in _pairs(storages) if pair in of_operands]
            bytes_ = found[0] if found else 0
        else:
            bytes_ = _forward_workspace(trace, op, batch)
            if bytes_:
                of_operands[storages[0], storages[1]] = bytes_
        result[op] = 0 if op in recorded else bytes_
    return result


def with_algorithms(trace: Trace, fast: NDArray[np.bool_]) -> Trace:
    """The step with the algorithms that a planner has chosen: slower ones, or workspaces.

    Ops and storages keep their indexes; workspaces come after the others.

    Args:
        trace: trace of the step.
        fast: whether the convolution of each op takes the fastest algorithm.
    """
    bytes_ = workspace_bytes(trace)
    slow = (bytes_ > 0) & ~fast & (trace.ops.duration_ns > 0)
    duration_ns = np.where(slow, np.rint(trace.ops.duration_ns * SPEED_RATIO), trace.ops.duration_ns)
    chosen = np.flatnonzero((bytes_ > 0) & fast)
    return replace(
        trace,
        ops=replace(trace.ops, duration_ns=duration_ns),
        storages=_with_workspaces(trace.storages, bytes_[chosen]),
        events=_with_their_lives(trace, chosen),
    )


def _with_workspaces(table: Storages, bytes_: NDArray[np.int64]) -> Storages:
    new: dict[str, Any] = {"bytes": bytes_, "role": Role.WORKSPACE, "name": 0, "module": 0, "successor": -1}
    columns = {name: np.broadcast_to(value, bytes_.shape) for name, value in new.items()}
    return Storages(**{name: np.append(getattr(table, name), column) for name, column in columns.items()})


def _with_their_lives(trace: Trace, ops: NDArray[np.int64]) -> Events:
    """Each is made and freed in its op, after all else that the op makes."""
    events, position = trace.events, event_positions(trace)
    before = np.searchsorted(position, 3 * ops + 1)
    made = np.flatnonzero((events.kind == EventKind.ALLOCATE) & (events.inside == 1))
    last = np.searchsorted(made, np.searchsorted(position, 3 * ops + 1, side="right")) - 1
    inside = (last >= 0) & (made[last] >= before) if len(made) else np.zeros(len(ops), bool)
    at = np.repeat(np.where(inside, made[last] + 1 if len(made) else 0, before), 2)
    storages = len(trace.storages) + np.arange(len(ops))
    kinds = np.tile([EventKind.ALLOCATE, EventKind.FREE], len(ops))
    new: dict[str, Any] = {"kind": kinds, "op": np.repeat(ops, 2), "inside": 1, "storage": np.repeat(storages, 2)}
    new |= {"offset_bytes": 0, "bytes": 0}
    return Events(**{name: np.insert(getattr(events, name), at, value) for name, value in new.items()})


def _pairs(storages: list[int]) -> list[tuple[int, int]]:
    return [(a, b) for a in storages for b in storages if a != b]


def _batch(trace: Trace) -> int:
    """Images of a step, from the smallest product with a weight: twice as many FLOPs as weights an image.

    1 where there is none: all images count as one of their whole area, whose tiles are cut off nowhere.
    """
    ops, accesses = trace.ops, trace.accesses
    weights = trace.storages.role[accesses.storage] == Role.PARAMETER
    largest = np.zeros(len(ops), np.int64)
    np.maximum.at(largest, accesses.op[weights], accesses.bytes[weights])
    products = (ops.op_class == OpClass.MATMUL) & (ops.phase == Phase.FORWARD) & (largest > 0) & (ops.flops > 0)
    if not products.any():
        return 1
    images = ops.flops[products] / (2 * largest[products] / _item_bytes(trace)[products])
    return max(round(float(images.min())), 1)


def _item_bytes(trace: Trace) -> NDArray[np.int64]:
    sizes = np.array([2 if dtype in ("fp16", "bf16") else 4 for dtype in ARITHMETIC])
    result: NDArray[np.int64] = sizes[trace.ops.arithmetic]
    return result


def _forward_workspace(trace: Trace, op: int, batch: int) -> int:
    """Operands of a convolution are an image and weights, and its result comes last."""
    table, rows = trace.accesses, slice(trace.first_access[op], trace.first_access[op + 1])
    flags, flops = table.flags[rows], int(trace.ops.flops[op])
    if len(flags) < 3 or flops <= 0 or not flags[-1] & Access.WRITE:
        return 0
    items = (table.bytes[rows] // _item_bytes(trace)[op]).tolist()
    image, weights, result = items[0], items[1], items[-1]
    products, rest = divmod(flops, 2 * result) if result else (0, 1)  # of an output: inputs x kernel x kernel
    if rest or products == 0 or weights == 0 or weights % products:  # small weights take no bytes of a `Capacity`
        return 0
    outputs = weights // products
    side = math.sqrt(result / (outputs * batch))
    candidates = []
    for kernel in range(1, _LARGEST_KERNEL + 1):
        inputs, rest = divmod(products, kernel * kernel)
        if rest or inputs == 0:
            continue
        image_side = math.sqrt(image / (inputs * batch))
        padding = side - image_side + kernel - 1  # of both sides together, if the stride is 1
        if -_ROUNDING <= padding <= 2 * (kernel - 1) + _ROUNDING:
            broken = abs(image_side - round(image_side)) > _ROUNDING
            misfit = (broken, abs(padding - (kernel - 1)))
            candidates.append((misfit, kernel, inputs))
    _, kernel, inputs = min(candidates, default=(None, 1, 0))
    return tiled_fft_bytes(batch, inputs, outputs, side, kernel) if kernel > 1 else 0
