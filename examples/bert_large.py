"""BERT-Large trained for masked language modelling on real English text, with or without unified memory.

    python examples/bert_large.py --no-unified --device cpu --batch-size 2 --seq-length 128 --steps 3

Unified memory is the two changed lines of Choi and Lee (Applied Sciences 2021, figure 5):
`torch.cuda.set_unified(advice)`, and `.to("cuda:<advice>")` where a script says `.to("cuda")`.
Weights, dropout and masks come from --seed: two runs of the same options on the same machine print the same losses to
the last bit, whatever the memory does.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from bert_matrix import run_matrix
from bert_memory import Memory
from bert_row import Row, write
from bert_text import Text, load_text, masked_batch

ADVICE = ("noadvise", "preferredlocation", "accessby", "readmostly", "prefetch")
VOCABULARY_SIZE = 30522  # of BERT's uncased models

# Layers, hidden size, heads, intermediate size: Devlin et al. (2019), section 3; `small`: Turc et al. (2019), table 1.
SIZES = {"large": (24, 1024, 16, 4096), "base": (12, 768, 12, 3072), "small": (4, 512, 8, 2048)}


@dataclass(frozen=True)
class Step:
    """One training step as it was observed."""

    loss: float
    duration_ns: int


def parse_options(words: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line; `auto` is resolved here, so that the options of a row say what ran."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--parameter-advice", choices=ADVICE, default="noadvise", help="advice for the model")
    parser.add_argument("--input-advice", choices=ADVICE, default="noadvise", help="advice for the batches")
    parser.add_argument("--intermediate-advice", choices=ADVICE, default="noadvise", help="advice for everything else")
    parser.add_argument("--unified", action=argparse.BooleanOptionalAction, default=True, help="use unified memory")
    parser.add_argument("--policy", metavar="NAME", help="instead: a session with this policy, such as swap or auto")
    parser.add_argument("--device", choices=("cpu", "emulated", "cuda", "auto"), default="auto")
    parser.add_argument("--capacity", help='memory of the device, such as "2GiB"')
    parser.add_argument("--budget", help="bytes that unified memory may keep on the device, below its capacity")
    parser.add_argument(
        "--clock", metavar="NAME", help="the emulated device keeps the time of this card of the catalogue"
    )
    parser.add_argument(
        "--checkpoint", action="store_true", help="mark each layer as one that may run again in backward"
    )
    parser.add_argument("--size", choices=SIZES, default="large", help="which BERT")
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--seq-length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was observed")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the fault profile, for `umadvise report`")
    parser.add_argument("--matrix", action="store_true", help="the paper's grid of advices: figures 6 to 9 and table 3")
    options = parser.parse_args(words)
    managed = options.unified or options.policy is not None
    options.unified = options.unified and options.policy is None
    if options.device == "auto":
        without_gpu = "emulated" if managed else "cpu"
        options.device = "cuda" if torch.cuda.is_available() else without_gpu
    if managed and options.device == "cpu":
        parser.error("unified memory needs a device of its own: --device emulated or cuda, or --no-unified")
    if options.clock is not None and options.device != "emulated":
        parser.error("--clock needs --device emulated: other devices have a time of their own")
    if options.matrix and (not options.unified or options.steps < 2):
        parser.error("--matrix compares unified memory over two steps or more")
    if options.report is not None and not managed:
        parser.error("--report needs unified memory or a policy: nothing else faults")
    if not 3 <= options.seq_length <= 512:
        parser.error("--seq-length must be 3 to 512: BERT has 512 positions, two of them for [CLS] and [SEP]")
    return options


def build_model(size: str) -> torch.nn.Module:
    """A BertForMaskedLM with random weights, in training mode (dropout on)."""
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    from transformers.models.bert import BertConfig, BertForMaskedLM

    layers, hidden_size, heads, intermediate_size = SIZES[size]
    config = BertConfig(
        vocab_size=VOCABULARY_SIZE,
        num_hidden_layers=layers,
        hidden_size=hidden_size,
        num_attention_heads=heads,
        intermediate_size=intermediate_size,
    )
    model: torch.nn.Module = BertForMaskedLM(config).train()
    return model


def make_gpu_repeatable() -> None:
    """Keeps kernels whose sums depend on the order of threads (attention's backward, cuBLAS) out of the way."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    # Filling would write to, and so fault, memory that nobody asked for. A property of the module: mypy cannot see it.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def train(options: argparse.Namespace, memory: Memory, text: Text) -> Iterator[Step]:
    """Trains and yields each step when it has ended."""
    seeds = range(options.seed, options.seed + options.steps)
    batches = [masked_batch(text, options.batch_size, options.seq_length, seed) for seed in seeds]
    torch.manual_seed(options.seed)
    model = memory.place(build_model(options.size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.manual_seed(options.seed)  # of dropout: whatever the weights took from the generator
    with memory.training(model, optimizer) as around_step:
        for batch in batches:
            memory.synchronize()
            start_ns = time.perf_counter_ns()
            with around_step():
                moved = {name: tensor.to(memory.batch_target) for name, tensor in batch.items()}
                loss = model(**moved).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                memory.synchronize()
            yield Step(loss.item(), time.perf_counter_ns() - start_ns)


def main() -> int:
    """Runs one row and returns the exit code."""
    options = parse_options()
    if options.matrix:
        run_matrix(options)
        return 0
    if options.device == "cuda":
        make_gpu_repeatable()
    steps: list[Step] = []
    error: str | None = None
    text = load_text(VOCABULARY_SIZE)
    memory = Memory(options)
    try:
        for step in train(options, memory, text):
            steps.append(step)
            seconds = step.duration_ns / 1e9
            print(f"step {len(steps)}  loss {step.loss:.6f} ({step.loss.hex()})  {seconds:.2f} s", flush=True)
    except torch.OutOfMemoryError as raised:
        error = str(raised)
        print(f"out of memory: {error}", file=sys.stderr)
    if options.json is not None:
        row = Row(
            options={name: value for name, value in vars(options).items() if not isinstance(value, Path)},
            losses_hex=[step.loss.hex() for step in steps],
            step_ns=[step.duration_ns for step in steps],
            error=error,
            peak_bytes=memory.peak_bytes,
            counters=memory.counters,
            report=str(options.report) if options.report is not None else None,
            swaps=memory.swaps,
            rungs=memory.rungs,
        )
        write(row, options.json)
    return 0 if error is None else 1


if __name__ == "__main__":
    sys.exit(main())
