"""Autocast for meta tensors, which torch has none for: the target's casts, made by the target's lists.

Which operators torch casts for a target is asked of its dispatcher; how it casts them is one of four policies
(aten/src/ATen/autocast_mode.h and autocast_mode.cpp; the op reference of torch.amp).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.amp.autocast_mode import autocast
from torch.utils._pytree import tree_map

from umadvise.records.trace import Target

# The kernels stand under a key of autocast that no build of torch uses; it lies where the others do, above autograd.
_KEY_NAME = "AutocastIPU"
_KEY: Any = getattr(torch._C.DispatchKey, _KEY_NAME)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LOWER = _names(
    "_addmm_activation _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d "
    "convolution cudnn_convolution cudnn_convolution_transpose prelu addmm addmv addr matmul einsum mm mv "
    "linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell "
    "_thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention "
    "scaled_dot_product_attention mkldnn_rnn_layer _native_multi_head_attention"
)
_WIDEST = _names(
    "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add stack cat index_copy"
)
_WITH_DTYPE = _names("prod softmax log_softmax cumprod cumsum linalg_vector_norm linalg_matrix_norm sum")


@contextmanager
def casting(target: Target) -> Iterator[None]:
    """Makes `torch.autocast(target)` cast meta tensors too, until the end."""
    casts = _Casts(target)
    with ExitStack() as stack:
        everything = torch.library.Library("_", "IMPL")
        stack.callback(everything._destroy)
        everything.fallback(torch.library.fallthrough_kernel, _KEY_NAME)
        library = torch.library.Library("aten", "IMPL")
        stack.callback(library._destroy)
        for name in _operators(f"Autocast{target.upper()}"):
            overload = _overload(name)
            if overload is not None:
                library.impl(name, casts.kernel(overload, name.partition(".")[0]), _KEY_NAME)
        for edge in ("__enter__", "__exit__"):
            stack.enter_context(mock.patch.object(autocast, edge, casts.around(getattr(autocast, edge))))
        if target == "cuda":  # this machine may have no GPU; the recorded one does
            stack.enter_context(mock.patch("torch.cuda.amp.common.amp_definitely_not_available", lambda: False))
            stack.enter_context(mock.patch("torch.cuda.is_bf16_supported", lambda *_: True))
        yield


def _operators(key: str) -> list[str]:
    names = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    return [name.removeprefix("aten::") for name in names if torch._C._dispatch_has_kernel_for_dispatch_key(name, key)]


def _overload(name: str) -> torch._ops.OpOverload | None:
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default", None)


class _Casts:
    """The casts of one recording, and the weights that are kept in the lower precision until autocast ends."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    def around(self, edge: Callable[..., Any]) -> Callable[..., Any]:
        """The beginning or end of an autocast region, which may switch casts on or off."""

        def passed(region: autocast, *error: Any) -> Any:
            result = edge(region, *error)
            self._switch()
            return result

        return passed

    def _switch(self) -> None:
        on = torch.is_autocast_enabled(self._target)
        torch._C._dispatch_tls_set_dispatch_key_included(_KEY, on)
        torch._C._dispatch_tls_set_dispatch_key_excluded(_KEY, not on)  # as torch has all keys of autocast
        if not on:
            self._kept.clear()

    def kernel(self, overload: torch._ops.OpOverload, base: str) -> Callable[..., Any]:
        """An operator under autocast."""
        below = torch._C.DispatchKeySet(_KEY)

        def cast_and_run(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(below):
                dtype = self._dtype(base, args, kwargs)
                if dtype is not None:
                    # Last argument first: the order in which compilers evaluate the casts of torch's own kernels.
                    cast = [tree_map(lambda value: self._cast(value, dtype), each) for each in reversed(args)]
                    args = tuple(reversed(cast))
                    kwargs = {name: tree_map(lambda value: self._cast(value, dtype), kwargs[name]) for name in kwargs}
                return overload(*args, **kwargs)

        return cast_and_run

    def _dtype(self, base: str, args: Any, kwargs: Any) -> torch.dtype | None:
        """What an operator's tensors are cast to, None for as they are."""
        if base in _LOWER:
            return torch.get_autocast_dtype(self._target)
        if base in _WIDEST:
            tensors = [each for each in torch.utils._pytree.tree_leaves((args, kwargs)) if _eligible(each)]
            return torch.float32 if any(each.dtype is torch.float32 for each in tensors) else None
        # On the CPU these are computed in fp32 like the rest.
        if base in _WITH_DTYPE and self._target == "cuda" and kwargs.get("dtype") is not None:
            return None
        return torch.float32

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if not _eligible(value) or value.dtype is dtype:
            return value
        keeps = dtype is not torch.float32 and value.dtype is torch.float32
        if not (keeps and value.requires_grad and value.is_leaf and value._base is None):
            return value.to(dtype)
        if not torch.is_autocast_cache_enabled():
            return value.to(dtype)
        if id(value) not in self._kept:
            self._kept[id(value)] = value, value.to(dtype)
        return self._kept[id(value)][1]


def _eligible(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dtype is not torch.float64
