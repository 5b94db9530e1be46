"""Simulating a step on a device that is not there: unified memory and swapping, by the same rules as the real thing."""

from umadvise.simulator.timeline import Span, SpanKind, Timeline, Track

__all__ = ["Span", "SpanKind", "Timeline", "Track"]
