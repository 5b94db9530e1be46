"""How much longer loops of small ops and of small steps take in a session than with plain PyTorch, though all fits.

    python tools/benchmark_small_steps.py [--loops k_means,metropolis] [--policies resident,swap,auto] [--rounds 200]

Each loop of tools/small_loops.py marks no steps. It runs with plain PyTorch and in sessions by turns, with one thread,
and the least CPU time of each is compared: the goal is at most 1.5 times plain PyTorch's. "passed through" runs without
a session, but each op takes the way through torch's dispatcher by which a session sees it: no guard can cost less. The
last line says how long the edge of a marked step takes in which nothing is recorded or planned. Exit codes: 0 every
loop keeps the goal, 1 one does not, or has other numbers.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from harness import add_results, command_line, cpu_ns, write_results
from small_loops import SMALL_LOOPS

import umadvise
from umadvise import EmulatedDevice
from umadvise._native.library import hooks_library
from umadvise.training.session import Session

GOAL = 1.5
POLICIES = "resident,swap,auto"
PLAIN, PASSED = "plain", "passed through"
EDGES = 2000


def session(policy: str) -> Session:
    """A session with a device on which everything fits."""
    return umadvise.session([], device=EmulatedDevice("256MiB"), policy=policy)


@contextmanager
def passed_through() -> Iterator[None]:
    """The dispatcher calls the interposer for each op, and that calls the op: no session is open."""
    hooks_library().um_hooks_beside(1)
    try:
        yield
    finally:
        hooks_library().um_hooks_beside(0)


def around(kind: str) -> AbstractContextManager[object]:
    """The context that a loop runs in."""
    if kind == PLAIN:
        return nullcontext()
    return passed_through() if kind == PASSED else session(kind)


def took(loop: Callable[[int], torch.Tensor], rounds: int, around: AbstractContextManager[object]) -> tuple[float, str]:
    """CPU time of a loop in nanoseconds, and its numbers."""
    torch.manual_seed(0)
    found: list[torch.Tensor] = []
    with around:
        ns = cpu_ns(lambda: found.append(loop(rounds)))
        return ns, found[0].numpy().tobytes().hex()


def edge_us(policy: str) -> float:
    """Microseconds of CPU time that an edge takes: what steps of one op take more than their ops alone."""
    with session(policy) as um:
        tensor = torch.ones(64)

        def step() -> None:
            with um.step():
                tensor.add_(1)

        cpu_ns(step, 100)  # the first ones are recorded
        stepped_ns = cpu_ns(step, EDGES)
        return (stepped_ns - cpu_ns(lambda: tensor.add_(1), EDGES)) / 1000


def main() -> int:
    """Prints a line for each loop; 1 where one takes longer than the goal."""
    parser = command_line(__doc__)
    names = ",".join(loop.__name__ for loop in SMALL_LOOPS)
    parser.add_argument("--loops", default=names, help=f"of {names}")
    parser.add_argument("--policies", default=POLICIES, help="of the sessions")
    parser.add_argument("--rounds", type=int, default=200, help="how often a loop comes round")
    parser.add_argument("--turns", type=int, default=3, help="of which the fastest counts")
    add_results(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    policies, kept = options.policies.split(","), True
    ratios: dict[str, float] = {}
    for loop in (each for each in SMALL_LOOPS if each.__name__ in options.loops.split(",")):
        took(loop, options.rounds, nullcontext())
        least_ns: dict[str, float] = {}
        numbers = set()
        for _ in range(options.turns):
            for kind in (PLAIN, PASSED, *policies):
                ns, found = took(loop, options.rounds, around(kind))
                least_ns[kind] = min(ns, least_ns.get(kind, ns))
                numbers.add(found)
        found_ratios = {kind: least_ns[kind] / least_ns[PLAIN] for kind in (PASSED, *policies)}
        ratios |= {f"{loop.__name__}, {kind}": ratio for kind, ratio in found_ratios.items()}
        kept = kept and len(numbers) == 1 and max(found_ratios.values()) <= GOAL
        words = ", ".join(f"{kind} x{ratio:.2f}" for kind, ratio in found_ratios.items())
        same = "" if len(numbers) == 1 else ": OTHER NUMBERS"
        print(f"{loop.__name__:18} {least_ns[PLAIN] / 1e6:7.1f} ms plain, {words}{same}", flush=True)
    print("an edge:", ", ".join(f"{policy} {edge_us(policy):.0f} us" for policy in policies))
    write_results(options, "umadvise-small-steps-1", ratios)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
