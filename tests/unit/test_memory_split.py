"""How large chunks are on a GPU."""

import pytest

from umadvise.memory_split import chunk_bytes_for

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
    assert chunk_bytes_for([size * MIB for size in sizes_mib]) == chunk_mib * MIB
