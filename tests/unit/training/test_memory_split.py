"""How large chunks are on a GPU."""

import pytest

from umadvise.training.memory_split import chunk_bytes_for

MIB = 1 << 20


@pytest.mark.parametrize(
    ("sizes_mib", "chunk_mib"),
    [
        ([], 20),
        ([64] * 10, 20),
        ([10] * 10, 10),  # half of 20 shares chunks
        ([11] * 10, 20),
        ([4] * 9, 4),
        ([2] * 9, 2),
        ([1] * 9, 2),  # too small for any
        ([90, 10], 20),  # a tenth of it may be
        ([89, 10], 10),
        ([16] * 2 + [4] * 4, 4),  # a layer of BERT-Large
    ],
)
def test_nine_tenths_can_leave(sizes_mib: list[int], chunk_mib: int) -> None:
    assert chunk_bytes_for([size * MIB for size in sizes_mib], 1024 * MIB) == chunk_mib * MIB


@pytest.mark.parametrize(("room_mib", "chunk_mib"), [(160, 20), (159, 10), (40, 4), (16, 2), (4, 2)])
def test_a_small_budget_holds_several(room_mib: int, chunk_mib: int) -> None:
    """Under `umadvise run` no size is known when chunks are made."""
    assert chunk_bytes_for([], room_mib * MIB) == chunk_mib * MIB
