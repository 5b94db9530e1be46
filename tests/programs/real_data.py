"""Real data that packages ship: the text of Python's own documentation, and scikit-learn's handwritten digits."""

import re
from collections import Counter
from pydoc_data import topics

import torch
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import Dataset


def words(vocabulary: int) -> torch.Tensor:
    """The language reference as numbers of its words, the most frequent first; what is rarer is word 0."""
    text = re.findall(r"\w+|[^\w\s]", " ".join(topics.topics.values()))
    ranks = {word: rank + 1 for rank, (word, _) in enumerate(Counter(text).most_common(vocabulary - 1))}
    return torch.tensor([ranks.get(word, 0) for word in text])


class Passages(Dataset[dict[str, torch.Tensor]]):
    """Passages of one length, as transformers' models take them: to be predicted word by word."""

    def __init__(self, count: int, length: int, vocabulary: int, first: int = 0) -> None:
        self._words, self._count, self._length, self._first = words(vocabulary), count, length, first

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        start = (self._first + index) * self._length
        passage = self._words[start : start + self._length]
        return {"input_ids": passage, "labels": passage.clone()}


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """1,797 pictures of 1 x 8 x 8 between 0 and 1, and what they show."""
    pictures, labels = load_digits(return_X_y=True)
    return torch.tensor(pictures, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16, torch.tensor(labels)


def enlarged_digits(side: int, channels: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """The pictures as networks for photographs take them."""
    pictures, labels = digits()
    large = functional.interpolate(pictures, size=(side, side), mode="bilinear")
    return large.expand(-1, channels, -1, -1), labels
