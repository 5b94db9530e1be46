"""Functions that make tensors: `device="cuda"` puts them onto the emulated device.

They are replaced one by one, in every thread. A function mode would see them all by itself, but while one is active
torch leaves fast paths whose results differ in the last bits (torch/nn/modules/transformer.py asks
`torch.overrides.has_torch_function`).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _device as device_contexts

from umadvise.records.enums import Role
from umadvise.torch_seam.cuda_spellings.words import ON_DEVICE, route_to, target_of
from umadvise.torch_seam.placement import to_device
from umadvise.torch_seam.replacements import Replacements
from umadvise.torch_seam.runtime import HOST, on_device, routed

FACTORIES = (
    *("arange", "as_tensor", "asarray", "empty", "empty_like", "empty_permuted", "empty_quantized", "empty_strided"),
    *("eye", "full", "full_like", "linspace", "logspace", "normal", "ones", "ones_like", "rand", "rand_like"),
    *("randint", "randint_like", "randn", "randn_like", "randperm", "range", "scalar_tensor", "tensor", "zeros"),
    *("zeros_like", "bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window"),
    *("sparse_bsc_tensor", "sparse_bsr_tensor", "sparse_compressed_tensor", "sparse_coo_tensor", "sparse_csc_tensor"),
    *("sparse_csr_tensor", "tril_indices", "triu_indices"),
)
METHODS = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros")
_ALIASING = ("as_tensor", "asarray")
"""On the CPU they may share the memory of what they are given; from the host to a GPU they copy."""
TYPES = ("Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool")
"""Of the old constructors, `torch.cuda.FloatTensor` and its kin."""


def _make(original: Callable[..., torch.Tensor], *arguments: Any, **named: Any) -> torch.Tensor:
    """The factory that knows CUDA's words; calls without them go through unchanged."""
    if named.get("pin_memory"):  # ordinary memory is as good: nothing here reads it by DMA
        del named["pin_memory"]
        with routed(HOST):
            return original(*arguments, **named)
    target = target_of(named.get("device"))
    if target is None:
        return original(*arguments, **named)
    named["device"] = ON_DEVICE  # not "cpu": torch.nested moves what it has made to the device that it is given
    with routed(route_to(target)):
        return original(*arguments, **named)


def _copy(original: Callable[..., torch.Tensor], *arguments: Any, **named: Any) -> torch.Tensor:
    target = target_of(named.get("device"))
    tensor = _make(original, *arguments, **named)
    return tensor if target is None or on_device(tensor) else to_device(tensor, Role.INPUT, target.advice)


def _init_context(original: Callable[..., None], self: Any, device: Any) -> None:
    """`with torch.device("cuda"):` and `torch.set_default_device("cuda")`."""
    original(self, device if target_of(device) is None else ON_DEVICE)
    if target_of(device) is not None:
        self.device = ON_DEVICE  # torch.device(ON_DEVICE) is another object


def _set_default_type(original: Callable[..., None], tensor_type: Any, /) -> None:
    original(without_cuda(tensor_type))


def without_cuda(tensor_type: Any) -> Any:
    """The name of a CUDA tensor's type becomes that of the CPU's."""
    is_ours = isinstance(tensor_type, str) and tensor_type.startswith("torch.cuda.")
    return "torch." + tensor_type.removeprefix("torch.cuda.") if is_ours else tensor_type


class _AnyGenerator(type(torch._C.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch._C.Generator)


class Generator(torch._C.Generator, metaclass=_AnyGenerator):
    """`torch.Generator("cuda")` is a generator of the CPU: the device's kernels draw from those."""

    def __new__(cls, device: Any = "cpu") -> Any:
        """Makes one of torch's own, or of a class that a program has made of it."""
        kind = torch._C.Generator if cls is Generator else cls
        wanted = "cpu" if target_of(device) is not None else device
        return torch._C.Generator.__new__(kind, wanted)  # type: ignore[call-arg]


def install(replaced: Replacements) -> None:
    """Replaces the factories."""
    functions = [
        *((torch, name, _copy if name in _ALIASING else _make) for name in FACTORIES),
        *((torch.fft, name, _make) for name in ("fftfreq", "rfftfreq")),
        *((torch.nested, name, _make) for name in ("nested_tensor", "as_nested_tensor")),
    ]
    constructors = device_contexts._device_constructors()  # torch's own: it keeps what it finds first
    known = {getattr(owner, name) for owner, name, _ in functions} & constructors
    for owner, name, function in functions:
        is_known = getattr(owner, name) in known
        replaced.around(owner, name, function, told=True)
        if is_known:
            known.add(getattr(owner, name))
    replaced.put(device_contexts, "_device_constructors", lambda: constructors | known)
    for name in METHODS:
        replaced.around(torch.Tensor, name, _make, told=True)
    replaced.around(device_contexts.DeviceContext, "__init__", _init_context)
    replaced.around(torch, "set_default_tensor_type", _set_default_type)
    replaced.put(torch, "Generator", Generator)
    for name in TYPES:
        replaced.put(torch.cuda, f"{name}Tensor", getattr(torch, f"{name}Tensor"))
