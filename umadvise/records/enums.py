"""What things are called in every record, with the numbers that csrc/include/umadvise.h gives them."""

from enum import IntEnum


class Role(IntEnum):
    """um_role: what a tensor is for. The first three choose the arena, the others are labels."""

    PARAMETER = 0
    INPUT = 1
    INTERMEDIATE = 2
    GRADIENT = 3
    OPTIMIZER_STATE = 4
    WORKSPACE = 5


class Advice(IntEnum):
    """um_advice: what the driver is told about unified memory."""

    NONE = 0
    PREFERRED_LOCATION = 1
    ACCESSED_BY = 2
    READ_MOSTLY = 3
    PREFETCH = 4


class Phase(IntEnum):
    """um_phase: the part of a training step that an op belongs to; NONE outside steps."""

    NONE = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3


class Cause(IntEnum):
    """um_cause: why bytes moved."""

    USER = 0
    COHERENCE = 1
    SPECULATIVE = 2
    EVICTION = 3
    ACCESS_COUNTER = 4
