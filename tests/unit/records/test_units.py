from decimal import Decimal, getcontext
from typing import SupportsIndex

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from umadvise.errors import InvalidSizeError
from umadvise.records.units import MAX_BYTES, format_bytes, format_duration_ns, parse_bytes

getcontext().prec = 120

# Written out from IEC 80000-13 and the SI brochure, not computed.
FACTORS = {
    "": 1,
    "B": 1,
    "KiB": 1024,
    "MiB": 1048576,
    "GiB": 1073741824,
    "TiB": 1099511627776,
    "kB": 1000,
    "KB": 1000,
    "MB": 1000000,
    "GB": 1000000000,
    "TB": 1000000000000,
}


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("0", 0),
        ("123", 123),
        (123, 123),
        ("8GiB", 8589934592),
        ("512MiB", 536870912),
        (" 512 mib ", 536870912),
        ("2e9", 2000000000),
        ("2E+9", 2000000000),
        ("1.5GiB", 1610612736),
        ("1.9B", 1),
        ("8GB", 8000000000),
        (MAX_BYTES, 9223372036854775807),
        ("9223372036854775807", 9223372036854775807),
    ],
)
def test_known_sizes(text: int | str, bytes_: int) -> None:
    assert parse_bytes(text) == bytes_


@given(st.decimals(0, 1000, allow_nan=False, places=6), st.sampled_from(sorted(FACTORS)))
def test_sizes_are_exact_at_any_number_of_digits(number: Decimal, unit: str) -> None:
    assert parse_bytes(f"{number:f} {unit}") == int(number * FACTORS[unit])


@pytest.mark.parametrize(
    "size",
    [
        "",
        " ",
        "GiB",
        "-1",
        "+1",
        "1,5GiB",
        "1.GiB",
        ".5GiB",
        "8G",
        "8 Gi B",
        "0x10",
        "nan",
        "inf",
        "1e",
        "1e-3",
        "1_000",
        "1e999999999",
        "9" * 100,
        "٣GiB",
        "8GiB\x00",
        True,
        None,
        2.0,
        b"8GiB",
        [8],
        np.float64(8),
        np.array([8]),
    ],
)
def test_what_is_no_size_is_refused_with_an_example(size: object) -> None:
    with pytest.raises(InvalidSizeError, match=r'cannot read .* "8GiB"'):
        parse_bytes(size)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [np.int64(4096), np.uint8(200), np.array(7)])
def test_integers_of_numpy_are_sizes(size: SupportsIndex) -> None:
    assert parse_bytes(size) == int(size)
    assert type(parse_bytes(size)) is int


@pytest.mark.parametrize("size", [-1, MAX_BYTES + 1, "9223372036854775808", "8388608TiB", "1e99"])
def test_what_no_machine_holds_is_refused(size: int | str) -> None:
    with pytest.raises(InvalidSizeError, match="out of range: expected 0 to 9223372036854775807 bytes"):
        parse_bytes(size)


@pytest.mark.parametrize(
    ("bytes_", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1610612736, "1.50 GiB"),
        (-2097152, "-2.00 MiB"),
        (MAX_BYTES, "8388608.00 TiB"),
    ],
)
def test_bytes_for_people(bytes_: int | None, text: str) -> None:
    assert format_bytes(bytes_) == text


@given(st.integers(0, MAX_BYTES // 2))
def test_formatted_bytes_read_back_to_within_the_two_digits_shown(bytes_: int) -> None:
    assert abs(parse_bytes(format_bytes(bytes_)) - bytes_) <= bytes_ * 0.005


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (None, "-"),
        (0, "0 ns"),
        (730, "730 ns"),
        (1000, "1.00 us"),
        (12_400_000, "12.40 ms"),
        (5_020_000_000, "5.02 s"),
        (3_600_000_000_000, "3600.00 s"),
    ],
)
def test_durations_for_people(duration_ns: int | None, text: str) -> None:
    assert format_duration_ns(duration_ns) == text
