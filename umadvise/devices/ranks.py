"""Which of several training processes this one is, as torchrun and its kin say in the environment.

Each has a device of its own, and shares its host's memory and link with the others there.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from umadvise.errors import UsageError


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among the others.

    Attributes:
        rank: number of this process, 0, 1, ... over all hosts.
        count: number of processes.
        local_rank: number of this process on its host, 0, 1, ...
        local_count: number of processes on its host.
    """

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    local_count: int = 1

    @property
    def speaks(self) -> bool:
        """Whether this process prints for all."""
        return self.rank == 0

    def own(self, path: Path) -> Path:
        """This process's own file in the place of one that all are told: "profile.json" is "profile.rank1.json".

        A process that is alone has the file itself.
        """
        return path if self.count == 1 else path.with_name(f"{path.stem}.rank{self.rank}{path.suffix}")


def ranks() -> Ranks:
    """What RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE say; one process alone where they say nothing.

    Raises:
        UsageError: they say what cannot be.
    """
    count, local_count = _number("WORLD_SIZE", 1), _number("LOCAL_WORLD_SIZE", 1)
    rank = _number("RANK", 0)
    found = Ranks(rank, count, _number("LOCAL_RANK", rank if local_count == count else 0), local_count)
    if not (found.rank < count and found.local_rank < local_count <= count):
        raise UsageError(
            f"RANK={found.rank}, WORLD_SIZE={count}, LOCAL_RANK={found.local_rank} and LOCAL_WORLD_SIZE={local_count} "
            "in the environment go together in no way: expected each rank below its count, as torchrun sets them"
        )
    return found


def _number(name: str, otherwise: int) -> int:
    word = os.environ.get(name, "")
    if not word:
        return otherwise
    if not word.isdecimal():
        raise UsageError(f"{name}={word[:40]!r} in the environment is no rank: expected a whole number, as of torchrun")
    return int(word)
