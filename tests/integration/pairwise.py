"""A small set of cases in which every pair of values of two factors occurs."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import combinations, cycle, product
from typing import Any

Case = dict[str, Any]
Pair = tuple[str, Any, str, Any]


def by_turns(some: Iterable[Any], others: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Returns each of `some` with one of the others, in turn; with UMADVISE_FULL=1 with each of them."""
    return list(product(some, others) if os.environ.get("UMADVISE_FULL") else zip(some, cycle(others)))


def covering(
    factors: Mapping[str, Sequence[Any]],
    possible: Callable[[Case], bool] = lambda _: True,
    with_each: Collection[str] | None = None,
) -> list[Case]:
    """Greedy and deterministic: each case starts from a pair that is missing, and takes what covers most of the others.

    Where nothing is missing the first value is taken: put the hardest one there.

    Args:
        factors: by name, the values that each can take.
        possible: of a case that need not be whole, whether its values go together. It must hold of every part of a
            case that it holds of, and any such case must be possible with some value of any other factor.
        with_each: factors whose values occur with every value of every other factor. None stands for all.
    """

    def pairs(case: Case) -> list[Pair]:
        names = [name for name in factors if name in case]
        return [(one, case[one], other, case[other]) for one, other in combinations(names, 2)]

    values = [[(name, value) for value in options] for name, options in factors.items()]
    missing: dict[Pair, None] = {  # a dict keeps its order, a set of strings has none
        (*first, *second): None
        for one, other in combinations(values, 2)
        for first in one
        for second in other
        if possible(dict([first, second])) and (with_each is None or {first[0], second[0]} & {*with_each})
    }
    cases = []
    while missing:
        one, value, other, second = next(iter(missing))
        case = {one: value, other: second}
        for name in factors:
            if name not in case:
                options = [found for option in factors[name] if possible(found := {**case, name: option})]
                case = max(options, key=lambda option: sum(pair in missing for pair in pairs(option)))
        cases.append({name: case[name] for name in factors})
        for pair in pairs(case):
            missing.pop(pair, None)
    return cases
