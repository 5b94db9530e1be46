"""transformers' Trainer: GPT-2, BERT in bfloat16, T5 with gradient checkpointing, Llama with LoRA by peft.

python transformers_trainer.py gpt2|bert|t5|llama
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from emulated_session import asked
from peft import LoraConfig, get_peft_model
from real_data import Passages
from telling import SHORT, tell, tell_state
from transformers import Trainer, TrainingArguments

VOCABULARY, LENGTH, BATCH, STEPS = 2000, 128, 4, 4 if SHORT else 6
WIDTH, HEADS, LAYERS = 576, 9, 2


class TellingTrainer(Trainer):
    """Trainer as it is, but that losses are told with all their bits."""

    def training_step(self, *arguments: Any, **named: Any) -> torch.Tensor:
        loss = super().training_step(*arguments, **named)
        tell("loss", loss)
        return loss


def gpt2() -> torch.nn.Module:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY, n_positions=2 * LENGTH, n_embd=WIDTH, n_head=HEADS, n_layer=LAYERS
        )
    )


def bert() -> torch.nn.Module:
    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            num_attention_heads=HEADS,
            num_hidden_layers=LAYERS,
            intermediate_size=4 * WIDTH,
            max_position_embeddings=LENGTH,
        )
    )


def t5() -> torch.nn.Module:
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=VOCABULARY,
            d_model=WIDTH,
            d_kv=64,
            num_heads=HEADS,
            d_ff=2 * WIDTH,
            num_layers=LAYERS,
            num_decoder_layers=1,
            decoder_start_token_id=0,
        )
    )


def llama() -> torch.nn.Module:
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            intermediate_size=3 * WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS // 3,
            max_position_embeddings=2 * LENGTH,
        )
    )
    return get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"))


MODELS = {"gpt2": gpt2, "bert": bert, "t5": t5, "llama": llama}
OPTIONS: dict[str, dict[str, Any]] = {
    "gpt2": {"gradient_accumulation_steps": 2},
    "bert": {"bf16": True},
    "t5": {"gradient_checkpointing": True},
    "llama": {},
}


def trainer_of(name: str, folder: str, steps: int) -> Trainer:
    transformers.set_seed(1)
    return TellingTrainer(
        model=MODELS[name](),
        args=TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=BATCH,
            max_steps=steps,
            eval_strategy="steps",
            eval_steps=STEPS // 2,
            save_steps=STEPS // 2,
            logging_steps=1,
            use_cpu=not torch.cuda.is_available(),  # or bf16 is refused
            report_to=[],
            disable_tqdm=True,
            **OPTIONS[name],
        ),
        train_dataset=Passages(256, LENGTH, VOCABULARY),
        eval_dataset=Passages(8, LENGTH, VOCABULARY, first=256),
        callbacks=callbacks(),
    )


def callbacks() -> list[transformers.TrainerCallback]:
    """Ours, where a session is asked for."""
    if not asked():
        return []
    from umadvise.integrations.transformers import UmadviseCallback

    return [UmadviseCallback(profile=os.environ["PROFILE"], **asked())]


def main() -> None:
    name = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(name, folder, STEPS)
        tell("begin")
        trainer.train()
        tell_state(trainer.model, trainer.optimizer)
        resumed = trainer_of(name, folder, STEPS)
        resumed.train(resume_from_checkpoint=str(Path(folder, f"checkpoint-{STEPS // 2}")))
        tell_state(resumed.model, resumed.optimizer)
        tell("evaluation", resumed.evaluate()["eval_loss"])
        if name != "bert":
            prompt = Passages(2, 16, VOCABULARY)
            asked = torch.stack([prompt[0]["input_ids"], prompt[1]["input_ids"]]).to(resumed.model.device)
            for options in ({}, {"do_sample": True}):
                tell("tokens", resumed.model.generate(input_ids=asked, max_new_tokens=8, **options).tolist())


if __name__ == "__main__":
    main()
