"""Arguments of which an op overwrites every byte before it reads any: what was there before need not be brought in."""

WRITE_ONLY: dict[str, tuple[str, ...]] = {
    "aten::zero_": ("self",),
    "aten::fill_.Scalar": ("self",),
    "aten::fill_.Tensor": ("self",),
    "aten::copy_": ("self",),
}
"""By operator with overload: names of the arguments."""
