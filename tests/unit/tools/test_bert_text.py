import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from bert_text import CLS, IGNORED_LABEL, MASK, SEP, UNKNOWN, Text, corpus, load_text, masked_batch, train_tokenizer

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def text() -> Text:
    return load_text(30522)


def test_the_vocabulary_covers_the_text_and_fits_the_limit(text: Text) -> None:
    assert UNKNOWN not in text.tokens
    assert int(text.tokens.max()) < text.vocabulary_size <= 30522
    assert len(text.tokens) > 50_000


def test_tokens_read_back_as_the_text() -> None:
    lines = corpus()[:200]
    tokenizer = train_tokenizer(lines, 2000)
    ids = tokenizer.encode("\n".join(lines), add_special_tokens=False).ids
    pieces = [tokenizer.id_to_token(id_) for id_ in ids]
    read_back = "".join(piece.removeprefix("##") for piece in pieces)
    assert read_back == "".join("".join(lines).lower().split())


def test_another_process_reads_the_same_tokens(text: Text) -> None:
    script = """
import hashlib
from bert_text import load_text
print(hashlib.sha256(load_text(30522).tokens.numpy().tobytes()).hexdigest())
"""
    examples = Path(__file__).parents[3] / "examples"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=examples)
    assert result.stdout.strip() == hashlib.sha256(text.tokens.numpy().tobytes()).hexdigest()


def test_a_batch_hides_tokens_only_where_it_has_labels(text: Text) -> None:
    batch = masked_batch(text, 64, 128, seed=7)
    input_ids, labels = batch["input_ids"], batch["labels"]
    assert input_ids.shape == labels.shape == (64, 128)
    assert (input_ids[:, 0] == CLS).all()
    assert (input_ids[:, -1] == SEP).all()
    assert (labels[:, [0, -1]] == IGNORED_LABEL).all()
    # Putting the labels back gives passages of the text itself.
    restored = torch.where(labels == IGNORED_LABEL, input_ids, labels)[:, 1:-1]
    passages = text.tokens.unfold(0, 126, 1)
    for row in restored:
        assert (passages == row).all(dim=1).any()


def test_shares_are_those_of_the_paper(text: Text) -> None:
    batch = masked_batch(text, 512, 128, seed=3)
    predicted = batch["labels"] != IGNORED_LABEL
    count = 512 * 126
    # Five standard deviations of a binomial; the seed is fixed.
    assert abs(int(predicted.sum()) - 0.15 * count) < 5 * (count * 0.15 * 0.85) ** 0.5
    hidden = int(predicted.sum())
    masked = int((batch["input_ids"][predicted] == MASK).sum())
    kept = int((batch["input_ids"][predicted] == batch["labels"][predicted]).sum())
    assert abs(masked - 0.8 * hidden) < 5 * (hidden * 0.8 * 0.2) ** 0.5
    assert abs(kept - 0.1 * hidden) < 5 * (hidden * 0.1 * 0.9) ** 0.5


def test_a_seed_gives_one_batch(text: Text) -> None:
    first, again, other = (masked_batch(text, 2, 32, seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["input_ids"], other["input_ids"])
