"""How much is measured: on a GPU, and where only the programs are tried."""

import os
from typing import TypeVar

VARIABLE = "GPU_CHECK_SMALL"
"""Set for all programs of a check whose device is slow: everything is as small as in a dry run."""

Amount = TypeVar("Amount")


def small() -> bool:
    """Whether this check is one."""
    return VARIABLE in os.environ


def by_kind(*, cuda: Amount, emulated: Amount) -> dict[str, Amount]:
    """An amount for each kind of device.

    Args:
        cuda: the amount on a GPU.
        emulated: the amount in a dry run.
    """
    return {"cuda": emulated if small() else cuda, "emulated": emulated}
