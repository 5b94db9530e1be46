"""Real English text for masked language modelling, with nothing downloaded: the prose that ships with CPython.

`pydoc_data.topics` is the language reference in 465 KB of text. A WordPiece vocabulary is trained on it in-process, so
that tokens, masks and therefore losses are the same in every process on the same Python.
"""

from dataclasses import dataclass
from pydoc_data import topics

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNKNOWN, CLS, SEP, MASK = range(len(SPECIAL_TOKENS))
IGNORED_LABEL = -100  # torch.nn.functional.cross_entropy's default ignore_index

# Devlin et al., BERT (2019), section 3.1: 15 % of the tokens are predicted; of those 80 % masked, 10 % replaced.
PREDICTED_SHARE, MASKED_SHARE, REPLACED_SHARE = 0.15, 0.8, 0.1


@dataclass(frozen=True)
class Text:
    """A corpus as token ids (int64, one dimension) and the size of its vocabulary."""

    tokens: torch.Tensor
    vocabulary_size: int


def corpus() -> list[str]:
    """The lines that hold words; rulers and blank lines teach nothing."""
    lines = (line for topic in topics.topics.values() for line in topic.splitlines())
    return [line for line in lines if any(character.isalpha() for character in line)]


def train_tokenizer(lines: list[str], vocabulary_size: int) -> Tokenizer:
    """Trains a lower-case WordPiece tokenizer whose first ids are SPECIAL_TOKENS.

    The trainer numbers the continuation pieces ("##a") in the order of a randomly seeded hash map, and breaks ties
    between merges by these numbers. Naming them in advance fixes both: every process gets the same vocabulary.
    """
    normalizer = normalizers.BertNormalizer(lowercase=True)
    normalized = (normalizer.normalize_str(line) for line in lines)
    alphabet = sorted({character for line in normalized for character in line if not character.isspace()})
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary_size,
        min_frequency=1,
        special_tokens=[*SPECIAL_TOKENS, *(f"##{character}" for character in alphabet)],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    learner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learner.normalizer = normalizer
    learner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    learner.train_from_iterator(lines, trainer)
    # In the trained tokenizer the continuation pieces are special tokens, which would match anywhere in a word.
    tokenizer = Tokenizer(models.WordPiece(learner.get_vocab(), unk_token="[UNK]"))
    tokenizer.normalizer = learner.normalizer
    tokenizer.pre_tokenizer = learner.pre_tokenizer
    return tokenizer


def load_text(vocabulary_size: int) -> Text:
    """Tokenizes the corpus with a vocabulary of at most `vocabulary_size` words."""
    lines = corpus()
    tokenizer = train_tokenizer(lines, vocabulary_size)
    ids = tokenizer.encode("\n".join(lines), add_special_tokens=False).ids
    return Text(torch.tensor(ids), tokenizer.get_vocab_size())


def masked_batch(text: Text, batch_size: int, sequence_length: int, seed: int) -> dict[str, torch.Tensor]:
    """A batch for BertForMaskedLM: `input_ids` and `labels`, both int64 of batch_size x sequence_length.

    Each row is [CLS], a passage that starts anywhere in the text, [SEP]. The same arguments give the same batch.
    """
    generator = torch.Generator().manual_seed(seed)
    passage_length = sequence_length - 2
    starts = torch.randint(len(text.tokens) - passage_length + 1, (batch_size, 1), generator=generator)
    passages = text.tokens[starts + torch.arange(passage_length)]

    draw = torch.rand(passages.shape, generator=generator)
    predicted = draw < PREDICTED_SHARE
    masked = draw < PREDICTED_SHARE * MASKED_SHARE
    replaced = predicted & ~masked & (draw < PREDICTED_SHARE * (MASKED_SHARE + REPLACED_SHARE))
    random_tokens = torch.randint(len(SPECIAL_TOKENS), text.vocabulary_size, passages.shape, generator=generator)
    shown = torch.where(masked, MASK, torch.where(replaced, random_tokens, passages))

    input_ids = torch.full((batch_size, sequence_length), SEP)
    input_ids[:, 0] = CLS
    input_ids[:, 1:-1] = shown
    labels = torch.full((batch_size, sequence_length), IGNORED_LABEL)
    labels[:, 1:-1] = torch.where(predicted, passages, IGNORED_LABEL)
    return {"input_ids": input_ids, "labels": labels}
