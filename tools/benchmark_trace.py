"""How long it takes to record BERT-Large dry, at batch 32 and 256 tokens, from building the model to the trace.

    python tools/benchmark_trace.py

Exits with 3 where it takes more than 3 seconds.
"""

import sys
import time

import harness  # noqa: F401  # isort: split
from networks import NETWORKS

from umadvise.devices import catalogue
from umadvise.recording.dry import recorder as dry

BATCH, LENGTH = 32, 256
MOST_SECONDS = 3.0
DEVICE = "rtx-6000-24gb"


def main() -> int:
    """Records twice; the second time everything is imported and warm, which is what is judged."""
    device = catalogue.load_device(DEVICE)
    seconds = 0.0
    for attempt in ("first", "again"):
        start = time.perf_counter()
        trace = dry.record(lambda: NETWORKS["bert_large"](BATCH, length=LENGTH), target="cuda", device=device)
        seconds = time.perf_counter() - start
        print(f"{attempt:<8}{seconds:6.2f} s   {len(trace.ops):,} ops, {len(trace.storages):,} storages")
    return 0 if seconds <= MOST_SECONDS else 3


if __name__ == "__main__":
    sys.exit(main())
