"""Generation with weights larger than the device: sessions beside accelerate, in the emulated device's virtual time.

    python tools/benchmark_inference.py [--networks gpt2-medium,gpt2-xl] [--modes greedy,sampled,beams] [--part 25]
                                        [--tokens 12] [--policies swap,auto] [--clock v100-16gb] [--json FILE]

A GPT-2 with random weights generates tokens from a prompt of 16, on a part of the bytes of its weights. No step is
shorter than its ops by the device's roofline, nor than the link needs for what cannot stay: all weights less the
budget. A row gives how long a token takes, from the seventh on (the median), and which part of that the bound is.

accelerate runs by its own hooks, and is charged alike: its ops take the times of the same roofline, and each weight
that a hook brings takes the time of one copy over the same link. These follow one another, as `.to(device)` waits for
its copy. `cpu_offload` brings every weight for every token; `dispatch_model` keeps the blocks that
`infer_auto_device_map` finds room for in the same budget. Its activations and cache take no room.

Tokens must be those of plain PyTorch. Exit codes: 0 all is well, 1 a session is below 0.9 of the bound or slower than
accelerate, 3 tokens differ.
"""

import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from unittest import mock

import accelerate.hooks
import msgspec
import torch
import transformers
from accelerate import cpu_offload, infer_auto_device_map
from harness import add_results, command_line, write_results

import umadvise
from umadvise import _native
from umadvise.devices.catalogue import load_device
from umadvise.recording.op_timer import OpTimer
from umadvise.records.device import DeviceProfile
from umadvise.records.units import format_bytes
from umadvise.torch_seam import runtime

FIRST = 6
"""Index of the first token that is looked at: by then a plan of a token drives."""
GOAL = 0.9
PROMPT = 16
_MOST_BYTES = 16 << 20
"""Activations, logits and the cache beside the weights, which a whole device would have room for."""
NETWORKS: dict[str, tuple[dict[str, int], torch.dtype]] = {
    "gpt2-medium": ({"n_layer": 24, "n_head": 16, "n_embd": 1024}, torch.bfloat16),
    "gpt2-xl": ({"n_layer": 48, "n_head": 25, "n_embd": 1600}, torch.bfloat16),
}
"""What differs from the GPT2Config of transformers, and the type of the weights."""
MODES: dict[str, dict[str, object]] = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True},
    "beams": {"do_sample": False, "num_beams": 4},
}
Ask = Callable[[], torch.Tensor]


class InferenceRun(msgspec.Struct, frozen=True, kw_only=True):
    """A generation of some tokens.

    Attributes:
        tokens: what was generated, with the prompt.
        steps_ns: virtual nanoseconds of each call of the model, with what follows it until the next one.
    """

    tokens: list[list[int]]
    steps_ns: list[int]

    @property
    def steady_ns(self) -> float:
        """The median of the later ones."""
        return statistics.median(self.steps_ns[FIRST:])


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run one network in a mode."""

    network: str
    mode: str
    way: str
    budget_bytes: int
    bound_ns: float
    run: InferenceRun
    bits: bool

    @property
    def of_bound(self) -> float:
        """The part of a token's time that nobody can do without."""
        return self.bound_ns / self.run.steady_ns


def build(network: str) -> transformers.GPT2LMHeadModel:
    """The network with random weights."""
    sizes, dtype = NETWORKS[network]
    with torch.device("meta"):
        model: Any = transformers.GPT2LMHeadModel(transformers.GPT2Config.from_dict({**sizes, "eos_token_id": None}))
    model = model.to(dtype).to_empty(device="cpu").eval()
    model.tie_weights()
    torch.manual_seed(0)
    with torch.no_grad():
        for each in model.parameters():
            each.uniform_(-0.03, 0.03)
    built: transformers.GPT2LMHeadModel = model
    return built


def timed(model: transformers.GPT2LMHeadModel, ask: Ask, now_ns: Callable[[], int]) -> InferenceRun:
    """Generates, and looks at a clock whenever the model is called."""
    seen_ns: list[int] = []
    handle = model.register_forward_pre_hook(lambda *_: seen_ns.append(now_ns()))
    try:
        tokens = ask().tolist()
    finally:
        handle.remove()
    return InferenceRun(tokens=tokens, steps_ns=[end - begin for begin, end in pairwise((*seen_ns, now_ns()))])


@contextmanager
def _charged(device: DeviceProfile) -> Iterator[Callable[[], int]]:
    """A clock that ops move, and the weights that accelerate's hooks bring."""
    spent_ns, bring = [0], accelerate.hooks.set_module_tensor_to_device
    way = device.link.h2d

    def op_took(duration_ns: int) -> None:
        spent_ns[0] += duration_ns

    def charged(module: torch.nn.Module, name: str, place: object, value: torch.Tensor | None = None, **how: object):  # type: ignore[no-untyped-def]
        if value is not None:
            spent_ns[0] += round(way.fixed_ns.value + value.nbytes * 1e9 / way.bytes_per_s.value)
        return bring(module, name, place, value=value, **how)

    with (
        mock.patch.object(_native, "op_took", op_took),
        mock.patch.object(accelerate.hooks, "set_module_tensor_to_device", charged),
        OpTimer(device),
    ):
        yield lambda: spent_ns[0]


def plain(model: transformers.GPT2LMHeadModel, ask: Ask, device: DeviceProfile) -> InferenceRun:
    """Plain PyTorch, of which only ops take time; with hooks of accelerate's on the model, what they bring too."""
    with _charged(device) as now_ns:
        return timed(model, ask, now_ns)


def session(model: transformers.GPT2LMHeadModel, ask: Ask, policy: str, budget_bytes: int, clock: str) -> InferenceRun:
    """A session without an optimizer, which finds the steps itself."""
    device = umadvise.EmulatedDevice(budget_bytes + _MOST_BYTES, clock=clock)
    with umadvise.session(model, device=device, policy=policy, budget=budget_bytes):
        return timed(model, ask, runtime.current().device.now_ns)


def offload(model: transformers.GPT2LMHeadModel, way: str, budget_bytes: int) -> None:
    """Puts accelerate's hooks on a model; the processor stands for the device, so that a weight need not move."""
    if way == "cpu_offload":
        cpu_offload(model, execution_device=torch.device("cpu"))
        return
    memory: dict[int | str, int] = {"cpu": budget_bytes}
    places = infer_auto_device_map(model, max_memory=memory, no_split_module_classes=["GPT2Block"])
    leaves = {name: place == "disk" for name, place in places.items()}
    here = dict.fromkeys(places, torch.device("cpu"))
    weights = dict(model.state_dict())
    # What dispatch_model does with such a map.
    accelerate.hooks.attach_align_device_hook_on_blocks(
        model, execution_device=here, offload=leaves, weights_map=weights, offload_buffers=False
    )


def measure(network: str, mode: str, part: float, count: int, policies: list[str], clock: str) -> Iterator[Generated]:
    """The rows of a network in a mode."""
    model, device = build(network), load_device(clock)
    weights_bytes = sum(each.nbytes for each in model.parameters())
    budget_bytes = int(weights_bytes * part)
    prompt = torch.arange(PROMPT).view(1, PROMPT)

    @torch.no_grad()
    def ask() -> torch.Tensor:
        torch.manual_seed(1)
        tokens: torch.Tensor = model.generate(prompt, max_new_tokens=count, pad_token_id=0, **MODES[mode])
        return tokens

    expected = plain(model, ask, device)
    link_ns = (weights_bytes - budget_bytes) * 1e9 / device.bandwidth_h2d
    bound_ns = max(expected.steady_ns, link_ns)

    def row(way: str, run: InferenceRun) -> Generated:
        return Generated(
            network=network,
            mode=mode,
            way=way,
            budget_bytes=budget_bytes,
            bound_ns=bound_ns,
            run=run,
            bits=run.tokens == expected.tokens,
        )

    for policy in policies:
        yield row(policy, session(model, ask, policy, budget_bytes, clock))
    for way in ("cpu_offload", "dispatch_model"):
        offload(model, way, budget_bytes)
        yield row(way, plain(model, ask, device))
        accelerate.hooks.remove_hook_from_submodules(model)
        model.tie_weights()


def text(row: Generated) -> str:
    """One line."""
    ns = row.run.steady_ns
    return (
        f"{row.network:8} {row.mode:8} {format_bytes(row.budget_bytes):>10} {row.way:15} a token {ns / 1e6:8.2f} ms, "
        f"x{row.of_bound:.3f} of the bound; all {sum(row.run.steps_ns) / 1e6:9.2f} ms  "
        f"{'equal' if row.bits else 'OTHER TOKENS'}"
    )


def main(words: list[str] | None = None) -> int:
    """Prints a line for each row; see the exit codes above."""
    parser = command_line(__doc__)
    parser.add_argument("--networks", default=",".join(NETWORKS), help="names, with commas (default: all)")
    parser.add_argument("--modes", default="greedy", help=f"of {', '.join(MODES)} (default greedy)")
    parser.add_argument("--part", type=float, default=25, help="percent of the weights' bytes (default 25)")
    parser.add_argument("--tokens", type=int, default=12, help=f"to generate, more than {FIRST} (default 12)")
    parser.add_argument("--policies", default="swap,auto", help="of sessions (default swap,auto)")
    parser.add_argument("--clock", default="v100-16gb", help="device whose times count (default v100-16gb)")
    add_results(parser)
    given = parser.parse_args(words)
    policies, rows = given.policies.split(","), []
    for network in given.networks.split(","):
        for mode in given.modes.split(","):
            for row in measure(network, mode, given.part / 100, given.tokens, policies, given.clock):
                rows.append(row)
                print(text(row), flush=True)
    ratios = {f"{row.network} {row.mode} {row.way}": row.of_bound for row in rows}
    write_results(given, "umadvise-inference/1", ratios, rows=[msgspec.to_builtins(row) for row in rows])
    if not all(row.bits for row in rows):
        return 3
    ours = [row for row in rows if row.way in policies]
    fastest = [row for row in rows if row.way == "dispatch_model"]
    others = {(row.network, row.mode): row.run.steady_ns for row in fastest}
    slow = [row for row in ours if row.of_bound < GOAL or row.run.steady_ns > others[row.network, row.mode]]
    return int(bool(slow))


if __name__ == "__main__":
    sys.exit(main())
