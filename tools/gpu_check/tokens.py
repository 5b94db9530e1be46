"""How long GPT-2 XL takes for a token where a quarter of its weights fits, as JSON: `python tokens.py cuda swap`.

`plain` is torch alone, with all weights on the device; any other word is a policy of a session. Two generations follow
one another: in the first one a session records and plans tokens. A token's time ends when the device has computed it.
Weights are chance, so tokens mean nothing, but all ways have to generate the same.
"""

import json
import sys
import time
from itertools import pairwise
from typing import Any

import torch
import transformers
from ours import CAPACITY
from sizes import by_kind

import umadvise
from umadvise import _native
from umadvise.records.counters import SwapCounters, Swaps

SHAPE: dict[str, dict[str, int]] = by_kind(
    cuda={"n_layer": 48, "n_embd": 1600, "n_head": 25},
    emulated={"n_layer": 4, "n_embd": 256, "n_head": 4, "vocab_size": 2000},
)
BESIDE_BYTES = by_kind(cuda=192 << 20, emulated=4 << 20)
"""What a session has beside a quarter of the weights, for activations and the cache."""
TOKENS = by_kind(cuda=24, emulated=4)
_PROMPT = 16
_BASE = 1 << 20
"""So many random numbers are repeated: a billion and a half take half a minute."""


class TokenTimes(transformers.LogitsProcessor):
    """When each token was there, and the sum of what it was chosen from."""

    def __init__(self, *, on_gpu: bool) -> None:
        self._on_gpu = on_gpu
        self.at_ns: list[int] = []
        self.sums: list[str] = []

    def __call__(self, _tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Waits for the device and looks at the clock."""
        if self._on_gpu:
            torch.cuda.synchronize()
        self.at_ns.append(time.perf_counter_ns())
        self.sums.append(float(scores.double().sum()).hex())
        return scores


def build(kind: str) -> Any:
    """The network, on the host."""
    with torch.device("meta"):
        config = transformers.GPT2Config.from_dict({**SHAPE[kind], "bos_token_id": None, "eos_token_id": None})
        model: Any = transformers.GPT2LMHeadModel(config)
    model = model.to(torch.bfloat16).to_empty(device="cpu").eval()
    model.tie_weights()
    torch.manual_seed(0)
    base = torch.empty(_BASE).uniform_(-0.02, 0.02).to(torch.bfloat16)
    with torch.no_grad():
        for each in model.parameters():
            each.copy_(base.repeat(-(-each.numel() // _BASE))[: each.numel()].view_as(each))
            if each.dim() == 1:
                each.add_(1)
    return model


def generate(model: Any, kind: str) -> dict[str, Any]:
    """One generation: nanoseconds of each token from the second on; tokens, and the sums of their scores."""
    on_gpu = kind == "cuda"
    times = TokenTimes(on_gpu=on_gpu)
    prompt = torch.arange(_PROMPT)[None].to("cuda" if on_gpu else "cpu")
    with torch.no_grad():
        tokens = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=TOKENS[kind],
            do_sample=False,
            pad_token_id=0,
            logits_processor=transformers.LogitsProcessorList([times]),
        )
    tokens_ns = [end - begin for begin, end in pairwise(times.at_ns)]
    return {"tokens_ns": tokens_ns, "tokens": tokens.tolist(), "sums_hex": times.sums}


def plain(kind: str) -> dict[str, Any]:
    """By torch alone."""
    model = build(kind).to("cuda" if kind == "cuda" else "cpu")
    return {"first": generate(model, kind), "again": generate(model, kind)}


def session(kind: str, policy: str) -> dict[str, Any]:
    """In a session; what is counted is of the second generation, for each token."""
    model = build(kind)
    budget_bytes = sum(each.nbytes for each in model.parameters()) // 4 + BESIDE_BYTES[kind]
    device = "cuda" if kind == "cuda" else umadvise.EmulatedDevice(capacity=CAPACITY)
    with umadvise.session(model, device=device, policy=policy, budget=budget_bytes) as running:
        first, calls, swaps = generate(model, kind), _calls(kind), running.swap_counters()
        again, calls_since, swaps_since = generate(model, kind), _calls(kind), running.swap_counters()
        return {
            "budget_bytes": budget_bytes,
            "rung_at_end": running.rung,
            "first": first,
            "again": again,
            "calls_per_token": {
                name: (made - calls.get(name, 0)) / TOKENS[kind] for name, made in calls_since.items() if made
            },
            "swaps_per_token": _per_token(swaps, swaps_since, TOKENS[kind]),
        }


def _calls(kind: str) -> dict[str, int]:
    return {made.function: made.calls for made in _native.cuda_calls()} if kind == "cuda" else {}


def _per_token(before: SwapCounters, after: SwapCounters, tokens: int) -> dict[str, float]:
    return {name: (getattr(after, name) - getattr(before, name)) / tokens for name in Swaps.__struct_fields__}


if __name__ == "__main__":
    kind, way = sys.argv[1:]
    print(json.dumps(plain(kind) if way == "plain" else session(kind, way)))
