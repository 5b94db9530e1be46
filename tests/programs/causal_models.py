"""A small causal language model of transformers, trained together with one other library; or generating.

python causal_models.py mamba|mixtral|bitsandbytes|trl|dispatch|schedulefree|caches
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import transformers
from real_data import Passages
from telling import SHORT, tell, tell_state

VOCABULARY, LENGTH, BATCH, STEPS = 2000, 64, 4, 3 if SHORT else 6
WIDTH, HEADS, LAYERS = 384, 6, 3
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def model_of(kind: str = "Llama", **options: Any) -> torch.nn.Module:
    """A model with a head of words, on the device."""
    torch.manual_seed(5)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": LAYERS}
    config = getattr(transformers, f"{kind}Config")(**sizes, pad_token_id=0, eos_token_id=None, **options)
    return getattr(transformers, f"{kind}ForCausalLM")(config).to(DEVICE)


def llama() -> torch.nn.Module:
    return model_of(intermediate_size=3 * WIDTH, num_attention_heads=HEADS, bos_token_id=1)


def batches() -> Iterator[torch.Tensor]:
    passages = Passages(BATCH * STEPS, LENGTH, VOCABULARY)
    for step in range(STEPS):
        yield torch.stack([passages[step * BATCH + index]["input_ids"] for index in range(BATCH)]).to(DEVICE)


def train(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    length: int = LENGTH,
) -> None:
    tell("begin")
    for batch in batches():
        words = batch[:, :length].contiguous()
        with around():
            loss = model(input_ids=words, labels=words).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        tell("loss", loss)
    tell_state(model, optimizer)


def adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def mamba() -> None:
    """Without mamba_ssm its scan is a loop over words, so there are few."""
    model = model_of("Mamba", state_size=8)
    train(model, adamw(model), length=12)


def mixtral() -> None:
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": HEADS // 2}
    model = model_of("Mixtral", intermediate_size=WIDTH, num_local_experts=4, **heads)
    train(model, adamw(model))


def bitsandbytes() -> None:
    """Weights in four bits beneath adapters of peft, and optimizer states in eight."""
    import bitsandbytes
    from peft import LoraConfig, get_peft_model

    model = llama().cpu()
    for layer in model.model.layers:
        for name in ("gate_proj", "up_proj", "down_proj"):
            plain = getattr(layer.mlp, name)
            four_bits = bitsandbytes.nn.Linear4bit(
                plain.in_features, plain.out_features, bias=False, compute_dtype=torch.float32, quant_type="nf4"
            )
            four_bits.load_state_dict(plain.state_dict())
            setattr(layer.mlp, name, four_bits)
    adapted = get_peft_model(model.to(DEVICE), LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    train(adapted, bitsandbytes.optim.AdamW8bit(trained, lr=1e-3))


def trl() -> None:
    """trl's offloading of activations, with a stream of its own, where there is a GPU."""
    from trl.models.activation_offloading import OffloadActivations

    model = llama()
    around = OffloadActivations if torch.cuda.is_available() else nullcontext
    train(model, adamw(model), around)


def dispatch() -> None:
    """accelerate's map of devices by their indices, of which the last layers are offloaded to the host."""
    from accelerate import dispatch_model

    model = llama().cpu().eval()
    main = 0 if torch.cuda.is_available() else "cpu"
    places = {"model.embed_tokens": main, "model.norm": main, "model.rotary_emb": main, "lm_head": main}
    places |= {f"model.layers.{index}": main if index < LAYERS - 1 else "cpu" for index in range(LAYERS)}
    model = dispatch_model(model, places, main_device=main)
    tell("begin")
    with torch.no_grad():
        for words in batches():
            tell("answers", model(input_ids=words).logits)


def schedulefree() -> None:
    from schedulefree import AdamWScheduleFree

    model = llama()
    optimizer = AdamWScheduleFree(model.parameters(), lr=1e-3, warmup_steps=2)
    optimizer.train()
    train(model, optimizer)
    optimizer.eval()
    tell_state(model)


def caches() -> None:
    """Tokens with each kind of cache that transformers has, the last of which moves to the host by streams."""
    model = llama().eval()
    words = next(batches())[:, :16]
    tell("begin")
    kinds = ("dynamic", "static") + (
        ("offloaded", "offloaded_static") if torch.cuda.is_available() else ("dynamic", "static")
    )
    for kind in kinds:
        found = model.generate(words, max_new_tokens=4 * STEPS, do_sample=False, cache_implementation=kind)
        tell("tokens", found.tolist())


if __name__ == "__main__":
    globals()[sys.argv[1]]()
