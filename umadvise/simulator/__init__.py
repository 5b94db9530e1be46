"""Simulates a training step on a device that is not there, with unified memory or with explicit swapping."""

from umadvise.records.timeline import Span, SpanKind, Timeline, Track
from umadvise.simulator.swap import Residence, SwapSimulation, simulate_resident, simulate_swap
from umadvise.simulator.unified import UnifiedSimulation, simulate_unified
from umadvise.simulator.unified_memory import Block, PageCounters, PageRecord, UnifiedMemory

__all__ = [
    "Block",
    "PageCounters",
    "PageRecord",
    "Residence",
    "Span",
    "SpanKind",
    "SwapSimulation",
    "Timeline",
    "Track",
    "UnifiedMemory",
    "UnifiedSimulation",
    "simulate_resident",
    "simulate_swap",
    "simulate_unified",
]
