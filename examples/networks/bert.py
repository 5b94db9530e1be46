"""BERT-Large with its masked-language-model head, the model of Choi and Lee 2021 (section 5)."""

import torch
from torch import nn

from umadvise.recording.workload import Workload, training_step


def masked_loss(model: nn.Module, tokens: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of masked language modelling, with its graph."""
    # Added to the scores, as Devlin et al.'s own code has it; transformers would read the values of a plain mask.
    added_mask = (1.0 - mask[:, None, None, :].to(torch.float32)) * torch.finfo(torch.float32).min
    loss: torch.Tensor = model(input_ids=tokens, attention_mask=added_mask, labels=labels).loss
    return loss


def bert_large(
    batch: int = 16,
    *,
    length: int = 256,
    layers: int = 24,
    hidden: int = 1024,
    heads: int = 16,
    vocabulary: int = 30522,
    attention: str = "eager",
) -> Workload:
    """BERT-Large on 256 tokens, with AdamW: batch 16 fits the paper's 24 GB without unified memory, 32 does not.

    335,174,458 parameters in transformers' `BertForMaskedLM` (no pooler and no sentence head, the output embedding tied
    to the input's); Devlin et al. 2019, section 3, and Choi and Lee say 340 million.

    Args:
        batch: sequences a step.
        length: tokens of a sequence, at most 512.
        layers: number of layers of the encoder.
        hidden: size of a token; the layers between are four times as wide.
        heads: number of heads of each attention.
        vocabulary: tokens that exist; BERT's uncased models have 30,522.
        attention: "eager" (each product on its own, as in the PyTorch 1.6 of the paper) or "sdpa" (as today).
    """
    from transformers.models.bert import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=vocabulary,
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
    )
    model = BertForMaskedLM(config).train()
    model.set_attn_implementation(attention)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(vocabulary, (batch, length))
    mask = torch.ones(batch, length, dtype=torch.int64)
    labels = torch.randint(vocabulary, (batch, length))
    return training_step(model, optimizer, masked_loss, tokens, mask, labels, name="bert_large")
