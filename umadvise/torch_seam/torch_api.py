"""The paper's two changed lines: `torch.cuda.set_unified(advice)` and `.to("cuda:<advice>")`; installed by `patch()`.

What is replaced: `to`, `cuda` and `cpu` of Tensor and Module; `torch.cuda.set_unified` is added. A call that names no
device of ours goes to torch unchanged. Source of the two calls: Choi and Lee 2021, section 4, figures 3 to 5.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parameter import UninitializedTensorMixin, is_lazy  # type: ignore[attr-defined]
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from umadvise import _native
from umadvise.errors import UntranslatedError, UsageError
from umadvise.records.advice import Target, parse_advice, parse_target
from umadvise.records.enums import Role
from umadvise.torch_seam.placement import to_device, to_host
from umadvise.torch_seam.replacements import refusing
from umadvise.torch_seam.runtime import Runtime, address_of, current, on_device, placed, routed


@dataclass(frozen=True, slots=True)
class _Move:
    """A `.to(...)` that names a device: `target` None is the CPU."""

    target: Target | None
    dtype: torch.dtype | None = None
    non_blocking: bool = False
    copy: bool = False
    memory_format: torch.memory_format = torch.preserve_format


def _bind_to(
    device: Any,
    dtype: torch.dtype | None = None,
    non_blocking: bool = False,
    copy: bool = False,
    *,
    memory_format: torch.memory_format | None = None,
) -> _Move | None:
    target = _target(device)
    if target is None and str(device).partition(":")[0] != "cpu":
        return None
    return _Move(target, dtype, non_blocking, copy, memory_format or torch.preserve_format)


def _bind_cuda(
    device: Any = None, non_blocking: bool = False, memory_format: torch.memory_format | None = None
) -> _Move | None:
    wanted = "cuda" if device is None else device
    if _parsed(wanted) is None:
        raise UsageError(f"cuda({device!r}) names no CUDA device: expected an index, 'cuda:<index>' or 'cuda:<advice>'")
    target = _target(wanted)
    if target is None:
        return None
    return _Move(target, non_blocking=non_blocking, memory_format=memory_format or torch.preserve_format)


def _target(device: Any) -> Target | None:
    """The CUDA target on the device in use that a device argument names; None for another GPU, which is torch's alone.

    Raises:
        UsageError: an index other than the device in use, with advice or where there is no other GPU;
            InvalidAdviceError for an unknown advice.
    """
    target = _parsed(device)
    if target is None or not _is_another_gpu(target):
        return target
    if current().emulated or target.advice is not None:
        raise UsageError(
            f"CUDA device {target.index} is not in use: umadvise was patched for device {current().ordinal}"
        )
    return None


def _parsed(device: Any) -> Target | None:
    is_index = isinstance(device, int) and not isinstance(device, bool)
    return Target(device, None) if is_index else parse_target(str(device))


def _is_another_gpu(target: Target) -> bool:
    """Not the one in use: by its index, or, as torch means it without one, because another is the current one."""
    ordinal = current().ordinal
    if target.index is not None:
        return target.index != ordinal and not (current().emulated and target.index == 0)
    alone = current().emulated or target.advice is not None or torch.cuda.device_count() < 2
    return not alone and torch.cuda.current_device() != ordinal


def _move_of(arguments: tuple[Any, ...], named: dict[str, Any]) -> _Move | None:
    """The move that the arguments of a `.to` ask for; None where they name no device (a dtype, another tensor)."""
    device = named.get("device", arguments[0] if arguments else None)
    names_device = isinstance(device, str | torch.device) or (isinstance(device, int) and not isinstance(device, bool))
    return _bind_to(*arguments, **named) if names_device else None


def _moved(tensor: torch.Tensor, move: _Move, role: Role, original: Callable[..., torch.Tensor]) -> torch.Tensor:
    runtime = current()
    if not runtime.emulated:
        return _moved_on_cuda(tensor, move, role, original)
    if tensor.is_meta:
        return original(tensor, "cpu")  # which says why it cannot be
    if is_lazy(tensor):  # nothing is there yet; what will be is made like any other tensor
        return original(tensor, "cpu", move.dtype)
    if move.target is not None:
        return to_device(
            tensor, role, move.target.advice, dtype=move.dtype, copy=move.copy, memory_format=move.memory_format
        )
    if on_device(tensor):
        return to_host(tensor, dtype=move.dtype, memory_format=move.memory_format)
    return original(tensor, "cpu", move.dtype, move.non_blocking, move.copy, memory_format=move.memory_format)


def _moved_on_cuda(
    tensor: torch.Tensor, move: _Move, role: Role, original: Callable[..., torch.Tensor]
) -> torch.Tensor:
    """The same on a real GPU: torch copies, our allocator gets the placement."""
    runtime = current()
    device = "cpu" if move.target is None else runtime.torch_device
    copy = move.copy
    if move.target is not None and tensor.numel() > 0:  # what is not ours, or advised otherwise, is copied
        allocation = _native.allocation_at(address_of(tensor))
        advice_differs = move.target.advice is not None and (
            allocation is None or allocation.advice != move.target.advice
        )
        copy = copy or allocation is None or advice_differs
    advice = move.target.advice if move.target else None
    with routed(placed(runtime.policy.placement(role, advice))):
        return original(tensor, device, move.dtype, move.non_blocking, copy, memory_format=move.memory_format)


def _tensor_to(
    original: Callable[..., torch.Tensor], self: torch.Tensor, *arguments: Any, **named: Any
) -> torch.Tensor:
    move = _move_of(arguments, named)
    return original(self, *arguments, **named) if move is None else _moved(self, move, Role.INPUT, original)


def _tensor_cuda(
    original: Callable[..., torch.Tensor], self: torch.Tensor, *arguments: Any, **named: Any
) -> torch.Tensor:
    move = _bind_cuda(*arguments, **named)
    if move is None:
        return original(self, *arguments, **named)
    return _moved(self, move, Role.INPUT, torch._C.TensorBase.to)


def _tensor_cpu(
    original: Callable[..., torch.Tensor],
    self: torch.Tensor,
    memory_format: torch.memory_format = torch.preserve_format,
) -> torch.Tensor:
    if current().emulated and on_device(self):
        return to_host(self, memory_format=memory_format)
    return original(self, memory_format=memory_format)


def _move_module(module: torch.nn.Module, move: _Move) -> torch.nn.Module:
    """`Module.to` for a device: dtypes change for floating point alone, channels-last for 4 and 5 dimensions alone.

    Raises:
        TypeError: a dtype that is neither floating point nor complex, as in torch.
    """
    if move.dtype is not None and not (move.dtype.is_floating_point or move.dtype.is_complex):
        raise TypeError(
            f"nn.Module.to only accepts floating point or complex dtypes, but got desired dtype={move.dtype}"
        )

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        floating = tensor.is_floating_point() or tensor.is_complex()
        if _moves_itself(tensor) and (move.target is None or move.target.advice is None):
            return tensor.to(_word(move.target), move.dtype if floating else None, move.non_blocking)
        suits = move.memory_format != torch.preserve_format and tensor.dim() in (4, 5)  # what is lazy has none yet
        memory_format = move.memory_format if suits else torch.preserve_format
        each = _Move(move.target, move.dtype if floating else None, move.non_blocking, memory_format=memory_format)
        return _moved(tensor, each, Role.PARAMETER, torch._C.TensorBase.to)

    module._apply(convert)
    label_module(module)
    return module


def _moves_itself(tensor: torch.Tensor) -> bool:
    """Whether the tensor's class has a `to` of its own, as parameters have that are quantized where they arrive."""
    return type(tensor).to is not torch.Tensor.to and not is_traceable_wrapper_subclass(tensor)


def _word(target: Target | None) -> str:
    if target is None:
        return "cpu"
    return "cuda" if target.index is None else f"cuda:{target.index}"


def moved_in(tensor: torch.Tensor, role: Role) -> torch.Tensor:
    """A tensor's values on the patched device, placed by its role and the policy; the tensor itself if it is there."""
    return _moved(tensor, _Move(Target(None, None)), role, torch._C.TensorBase.to)


def move_module_in(module: torch.nn.Module) -> None:
    """Moves a module's parameters, their gradients and its buffers, as `module.to` does."""
    _move_module(module, _Move(Target(None, None)))


def label_module(module: torch.nn.Module, prefix: str = "") -> None:
    """Gives a module's parameters and buffers on our devices their role and their qualified names."""
    for named in (module.named_parameters(), module.named_buffers()):
        for name, tensor in named:
            if on_device(tensor):
                _native.label(address_of(tensor), Role.PARAMETER, prefix + name)


def _module_to(
    original: Callable[..., torch.nn.Module], self: torch.nn.Module, *arguments: Any, **named: Any
) -> torch.nn.Module:
    move = _move_of(arguments, named)
    return original(self, *arguments, **named) if move is None else _move_module(self, move)


def _module_cuda(
    original: Callable[..., torch.nn.Module], self: torch.nn.Module, device: Any = None
) -> torch.nn.Module:
    move = _bind_cuda(device)
    return original(self, device) if move is None else _move_module(self, move)


def set_unified(advice: str) -> None:
    """Puts intermediates made from now on into unified memory with that advice (`torch.cuda.set_unified`).

    It holds until `unpatch()`, in sessions too: explicit advice beats every policy.

    Args:
        advice: noadvise, preferredlocation, accessby, readmostly or prefetch.

    Raises:
        InvalidAdviceError: another word.
        StateError: nothing is patched.
    """
    runtime = current()
    runtime.intermediate_advice = parse_advice(advice)
    runtime.set_policy(runtime.policy)


_no_cuda = refusing(
    UntranslatedError,
    'device="cuda", outside of `umadvise run`,',
    'new tensors are on it without that, and only .to("cuda") and .cuda() are known here',
    'leave device= out or write device="cpu", use um.to_device(batch) in a session, or start the script, as it is, '
    "by `umadvise run --device emulated`",
)
"""Where torch itself arrives when CUDA is asked for where there is none, as by `torch.ones(2, device="cuda")`."""


def install(runtime: Runtime) -> None:
    """Replaces torch's methods."""
    replaced = runtime.replaced
    if runtime.emulated and not torch.cuda.is_available():
        replaced.put(torch.cuda, "_lazy_init", _no_cuda)
    replaced.around(torch.Tensor, "to", _tensor_to, told=True)
    replaced.around(torch.Tensor, "cuda", _tensor_cuda, told=True)
    replaced.around(torch.Tensor, "cpu", _tensor_cpu, told=True)
    ours = [torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.cpu]
    replaced.replace(UninitializedTensorMixin, "_allowed_methods", lambda allowed: [*allowed, *ours])
    replaced.around(torch.nn.Module, "to", _module_to)
    replaced.around(torch.nn.Module, "cuda", _module_cuda)
    replaced.put(torch.nn.Module, "cpu", lambda module: _move_module(module, _Move(None)))
    replaced.put(torch.cuda, "set_unified", set_unified)
