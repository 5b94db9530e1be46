"""A character LSTM (Karpathy's char-rnn), which the DQN paper trains in Singa as one cuDNN LSTM (section 5)."""

import torch
from torch import nn

from umadvise.recording.workload import Workload

_GRADIENT_NORM = 5.0


class _CharLSTM(nn.Module):
    """Characters come in as one-hot vectors, as in char-rnn and in Singa's example: there is no embedding."""

    def __init__(self, characters: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(characters, hidden, layers, dropout=0.5)
        self.head = nn.Linear(hidden, characters)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        output, _ = self.lstm(text)
        logits: torch.Tensor = self.head(output)
        return logits


def char_lstm(
    batch: int = 32, *, length: int = 64, hidden: int = 128, layers: int = 2, characters: int = 65
) -> Workload:
    """Two LSTM layers of 128 units that predict the next of 64 characters, with RMSprop and a bounded gradient.

    The DQN paper gives no sizes: these are the defaults of the example of Singa, the framework that it ran, with the 65
    characters of Karpathy's Shakespeare. 240,321 parameters: the sum over char-rnn's layers, which it prints too.

    Args:
        batch: sequences a step.
        length: characters of a sequence.
        hidden: units of a layer.
        layers: LSTM layers, two or more (dropout 0.5 is between them).
        characters: size of the alphabet.
    """
    model = _CharLSTM(characters, hidden, layers)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    text = torch.zeros(length, batch, characters)
    text.scatter_(2, torch.randint(characters, (length, batch, 1)), 1.0)
    following = torch.randint(characters, (length, batch))

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(text).flatten(0, 1), following.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), _GRADIENT_NORM)
        optimizer.step()
        return loss.detach()

    return Workload(step, (model,), (optimizer,), (text, following), "char_lstm")
