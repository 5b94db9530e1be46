"""Layers of a trace, for planners that work layer by layer: runs of ops of one module and one kind."""

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from umadvise.records.enums import Phase
from umadvise.records.trace import Access, OpClass, Trace


class LayerKind(Enum):
    """What a layer is."""

    COMPUTE = "compute"  # convolution, product, attention: what takes the time
    ACTIVATION = "activation"
    LOSS = "loss"
    OTHER = "other"  # pooling, normalisation, concatenation


_COMPUTE = (OpClass.CONVOLUTION, OpClass.MATMUL, OpClass.ATTENTION)


@dataclass(frozen=True, slots=True)
class Layer:
    """The forward ops of a layer.

    Attributes:
        first: first op of the layer.
        last: last op of the layer.
        kind: what the layer does.
        op_class: class that all of its ops have.
    """

    first: int
    last: int
    kind: LayerKind
    op_class: OpClass


@dataclass(frozen=True, slots=True)
class Backward:
    """A run of backward ops.

    Attributes:
        first: first op of the run.
        last: last op of the run.
        layer: index of the layer whose gradients the run computes.
    """

    first: int
    last: int
    layer: int


@dataclass(frozen=True)
class Layers:
    """The layers of a step.

    Attributes:
        forward: layers in the order of execution.
        backward: runs of backward ops in the order of execution.
        of_op: layer of each forward op; -1 for others.
    """

    forward: tuple[Layer, ...]
    backward: tuple[Backward, ...]
    of_op: NDArray[np.int64]

    @property
    def classifier(self) -> int:
        """First of the classification layers, which end a network of convolutions: products, activations, loss.

        The number of layers where there is none: products are what a network without convolutions consists of.
        """
        count = len(self.forward)
        if all(layer.op_class != OpClass.CONVOLUTION for layer in self.forward):
            return count
        while count and (
            self.forward[count - 1].kind in (LayerKind.ACTIVATION, LayerKind.LOSS)
            or self.forward[count - 1].op_class == OpClass.MATMUL
        ):
            count -= 1
        return count


def find_layers(trace: Trace) -> Layers:
    """The layers of a step.

    Forward, a layer is a run of ops of one module and one class; each convolution, product or attention is one alone.
    An op that reads nothing belongs to none.
    Backward, a run of ops of one module and one class belongs to the last such layer before the one whose gradients
    came last; a run for which there is none belongs to that one (sums of gradients, for instance).
    """
    forward: list[Layer] = []
    backward: list[Backward] = []
    of_op = np.full(len(trace.ops), -1, np.int64)
    known: dict[tuple[int, int], list[int]] = {}
    before, current = None, 0
    reading = set(trace.accesses.op[(trace.accesses.flags & Access.READ) != 0].tolist())
    columns = (trace.ops.phase, trace.ops.module, trace.ops.op_class)
    for op, (phase, module, op_class) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        here = (phase, module, op_class)
        if phase == Phase.FORWARD and op in reading:
            if here == before and op_class not in _COMPUTE:
                forward[-1] = replace(forward[-1], last=op)
            else:
                known.setdefault((module, op_class), []).append(len(forward))
                forward.append(Layer(op, op, _kind(trace, op), OpClass(op_class)))
            of_op[op] = len(forward) - 1
            current = len(forward)
        elif phase == Phase.BACKWARD:
            found = known.get((module, op_class), []) if here != before else []
            while found and found[-1] >= current:
                found.pop()
            if found or not backward or backward[-1].last < op - 1:
                current = found.pop() if found else current
                backward.append(Backward(op, op, current))
            else:
                backward[-1] = Backward(backward[-1].first, op, current)
        before = here if op in reading else None
    return Layers(tuple(forward), tuple(backward), of_op)


def _kind(trace: Trace, op: int) -> LayerKind:
    op_class, name = trace.ops.op_class[op], trace.strings[trace.ops.name[op]]
    if op_class in _COMPUTE:
        return LayerKind.COMPUTE
    if op_class == OpClass.ELEMENTWISE:
        return LayerKind.ACTIVATION
    return LayerKind.LOSS if "loss" in name or "softmax" in name else LayerKind.OTHER
