"""Benchmark of the lower bound: how long it takes, and how near it is to the one that looks at memory in every op.

python tools/benchmark_bound.py [--device v100-pcie-16gb] [--batch 512] [--share 0.5] [--coarse 100] [--full] [--json]

The step is ResNet-50's, recorded dry, in a share of its unlimited peak. `--full` solves the programme of all ops too,
which takes minutes. Exits 3 when the bound takes more than 10 s, or is below 99 % of the full one.
"""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from networks import resnet

from umadvise.catalogue import load_device
from umadvise.errors import CheckFailedError
from umadvise.planners.bound import lower_bound
from umadvise.trace import dry

LIMIT_S = 10.0
LIMIT_SHARE = 0.99


def main() -> int:
    """Measures, prints, and judges."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="v100-pcie-16gb")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--coarse", type=int, default=100)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    device = load_device(options.device)
    trace = dry.record(lambda: resnet.resnet50(options.batch), device=device)
    budget_bytes = int(trace.peak_bytes * options.share)
    found: dict[str, dict[str, float]] = {}
    for name, coarse in (("coarse", options.coarse), *((("full", None),) if options.full else ())):
        begin = time.perf_counter()
        bound = lower_bound(trace, device, budget_bytes, coarse=coarse)
        seconds = time.perf_counter() - begin
        found[name] = {"step_ms": bound.step_ns / 1e6, "seconds": seconds, "columns": bound.details.get("columns", 0)}
    if options.json:
        print(json.dumps({"schema": "umadvise.benchmark-bound/1", "bounds": found}))
    else:
        print(
            f"{len(trace.ops)} ops, {trace.duration_ns / 1e6:.1f} ms of compute, budget {budget_bytes / 2**30:.2f} GiB"
        )
        for name, each in found.items():
            print(f"{name:>7} {each['step_ms']:10.1f} ms in {each['seconds']:8.2f} s, {each['columns']} columns")
    near = found["coarse"]["step_ms"] >= LIMIT_SHARE * found["full"]["step_ms"] if options.full else True
    return 0 if near and found["coarse"]["seconds"] <= LIMIT_S else CheckFailedError.exit_code


if __name__ == "__main__":
    sys.exit(main())
