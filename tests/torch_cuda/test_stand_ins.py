"""Whether the stand-ins for a GPU are right, and can show what they are there for: torch alone, without umadvise."""

from collections.abc import Callable
from typing import Any

import pytest

ASYNC = {"STAND_IN_ASYNC": 1}
MANAGED_MEMORY, VIRTUAL_MEMORY = 83, 102


@pytest.fixture
def program(run: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *words, **settings: run("stand_in_programs.py", *words, **settings)


@pytest.mark.parametrize("settings", [{}, {**ASYNC, "STAND_IN_DELAY_US": 300}], ids=["at once", "delayed"])
def test_training_gives_the_losses_of_the_cpu(program: Callable[..., Any], settings: dict[str, int]) -> None:
    for name, found in program("training", **settings).items():
        assert found["cuda"] == found["cpu"], name


@pytest.mark.parametrize("settings", [{}, ASYNC], ids=["at once", "asynchronous"])
def test_sparse_gradients_and_averages_are_those_of_the_cpu(
    program: Callable[..., Any], settings: dict[str, int]
) -> None:
    for name, found in program("sparse_gradients", **settings).items():
        assert found["cuda"] == found["cpu"], name
    averages = program("averaging", **settings)
    assert averages["cuda"] == averages["cpu"]


def test_torchs_expandable_segments_work(program: Callable[..., Any]) -> None:
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert program("expandable_segments", **settings) == [2.0, 4 << 20]


def test_only_ops_whose_results_depend_on_values_wait(program: Callable[..., Any]) -> None:
    assert program("waits", **ASYNC) == {"training": [], "nonzero": ["aten::nonzero"]}


def test_a_kernel_that_nobody_computes_fails_by_name_for_good(program: Callable[..., Any]) -> None:
    seen = program("unknown_kernel")
    assert "nobody computes the kernel" in seen["first"]
    assert "fused_dropout" in seen["first"]
    assert "fused_dropout" in seen["then"]


@pytest.mark.parametrize("settings", [{}, ASYNC], ids=["at once", "asynchronous"])
def test_a_kernel_that_fails_loses_the_device_by_name(program: Callable[..., Any], settings: dict[str, int]) -> None:
    assert "aten::index.Tensor: index 9 is out of bounds" in program("bad_index", **settings)


def test_wrong_arguments_are_errors_of_the_call(program: Callable[..., Any]) -> None:
    functional, in_place, across = program("bad_shapes", **ASYNC)
    assert "must match the size" in functional
    assert "must match the size" in in_place
    assert "Expected all tensors to be on the same device" in across


def test_kernels_run_when_their_stream_comes_to_them(program: Callable[..., Any]) -> None:
    assert program("asynchronous", **ASYNC) == {"before": [1.0, False], "after": [2.0, True]}
    assert program("at_once") == 2.0


def test_a_missing_wait_gives_wrong_numbers(program: Callable[..., Any]) -> None:
    assert program("two_streams", "waits", **ASYNC) == 20
    assert program("two_streams", "does not", **ASYNC) == 10


def test_memory_that_is_freed_too_early_is_used_after_that(program: Callable[..., Any]) -> None:
    assert program("freed_too_early", "recorded", **ASYNC) == 10
    assert program("freed_too_early", "not recorded", **ASYNC) == 70


@pytest.mark.parametrize("seed", [1, 2])
def test_delays_are_those_of_the_seed(program: Callable[..., Any], seed: int) -> None:
    most_us = 20000
    gaps = program("gaps_us", STAND_IN_DELAY_US=most_us, STAND_IN_SEED=seed, **ASYNC)
    # Of the first piece of work, which holds the stream, nobody knows when it began to wait.
    assert [gap >= least for gap, least in zip(gaps, delays_us(seed, most_us, 21)[1:], strict=True)] == [True] * 20


def delays_us(seed: int, most_us: int, count: int) -> list[int]:
    """splitmix64 as published: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014."""
    mask, found = (1 << 64) - 1, []
    for index in range(count):
        bits = (2 * seed + 1 + index * 0x9E3779B97F4A7C15) & mask
        bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & mask
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & mask
        found.append((bits ^ (bits >> 31)) % (most_us + 1))
    return found


def test_random_numbers_are_those_of_the_devices_generator(program: Callable[..., Any]) -> None:
    seen = program("randomness")
    assert seen["again"] and not seen["otherwise"] and seen["state"] and seen["cpu"]
    assert 0 < seen["zeros"] < 64
    assert program("randomness", STAND_IN_DELAY_US=300, **ASYNC) == seen


def test_each_device_has_its_own_memory(program: Callable[..., Any]) -> None:
    seen = program("two_devices", STAND_IN_DEVICES=2)
    assert seen["mixed"].startswith("Expected all tensors to be on the same device")
    del seen["mixed"]
    assert seen == {
        "count": 2,
        "devices": ["cuda:1", "cuda:0"],
        "values": [[6.0] * 4, [7.0] * 4],
        "allocated": [512, 1024],  # torch's allocator deals in 512 bytes: z there, x and y here
    }


def test_attributes_are_missing_everywhere(program: Callable[..., Any]) -> None:
    lacks = f"{VIRTUAL_MEMORY},{MANAGED_MEMORY}"
    for number in (VIRTUAL_MEMORY, MANAGED_MEMORY):
        assert program("attribute", str(number)) == [1, 1]
        assert program("attribute", str(number), STAND_IN_LACKS=lacks) == [0, 0]


def test_copies_take_pageable_memory_at_the_call_and_page_locked_memory_later(program: Callable[..., Any]) -> None:
    assert program("copies", **ASYNC) == {"staged": 1.0, "direct": 5.0, "back": 5.0}
