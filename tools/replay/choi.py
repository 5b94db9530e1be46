"""Choi and Lee 2021: BERT-Large, 256 tokens, on a Quadro RTX 6000 24 GB, with and without unified memory."""

from collections.abc import Iterable, Iterator

from replay.outcome import Outcome, calibration, holds, pending
from replay.published import Figure
from replay.recording import bert_trace
from umadvise.catalogue import load_device
from umadvise.units import format_bytes

TABLE = "choi_bert_large"
DEVICE = "rtx-6000-24gb"
_PLAIN = "none_no_unified_memory"


def replay(figures: Iterable[Figure]) -> Iterator[Outcome]:
    """Predicts each figure of the table."""
    for figure in figures:
        quantity, batch, *advice = figure.key
        step = bert_trace(int(batch), DEVICE)
        if quantity == "trainable":
            fits = step.peak_bytes <= load_device(DEVICE).memory_bytes
            agrees = fits == (figure.low is not None)
            peak = f"peak {format_bytes(step.peak_bytes)}"
            yield holds(figure, agrees, "fits" if fits else "x", "out of memory or not", peak)
        elif advice[-1] == _PLAIN:
            yield calibration(figure, step.duration_ns / 1e9, "")
        else:
            yield pending(figure, "the simulator of unified memory")
