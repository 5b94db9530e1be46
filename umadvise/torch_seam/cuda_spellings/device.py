"""The functions of `torch.cuda`: one GPU a process, said to be emulated; what has no meaning is refused by name."""

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any

import torch

from umadvise.devices.ranks import ranks
from umadvise.errors import UntranslatedError
from umadvise.torch_seam.cuda_spellings import streams
from umadvise.torch_seam.cuda_spellings.memory import MemoryFunctions
from umadvise.torch_seam.cuda_spellings.words import asked_by_torch, check_index, own_index, target_of
from umadvise.torch_seam.replacements import Replacements, refusing
from umadvise.torch_seam.runtime import Runtime

CAPABILITY = (8, 0)
"""What scripts ask before they use bfloat16, which every CPU computes in."""

LEFT_ALONE = frozenset(
    (
        *("CudaError", "DeferredCudaCallError", "amp", "check_error", "cudaStatus", "graphs", "has_half", "has_magma"),
        *("is_tf32_supported", "memory", "nccl", "nvtx", "profiler", "random", "sparse", "streams", "tunable"),
        *("jiterator", "get_arch_list", "get_gencode_flags"),
    )
)
"""Of `torch.cuda`: types, modules whose functions are translated or refused, and what answers on any machine."""
_REFUSED_MODULES = ("comm", "nccl", "tunable", "jiterator")


@dataclass(frozen=True)
class EmulatedProperties:
    """`torch.cuda.get_device_properties()`."""

    name: str
    total_memory: int
    major: int = CAPABILITY[0]
    minor: int = CAPABILITY[1]
    multi_processor_count: int = os.cpu_count() or 1
    is_integrated: bool = False
    is_multi_gpu_board: bool = False


@contextlib.contextmanager
def _nothing_within(*_arguments: Any, **_named: Any) -> Iterator[None]:
    yield


class DeviceContext:
    """`torch.cuda.device(0)` and `torch.cuda.device_of(tensor)`."""

    def __init__(self, device: Any = None) -> None:
        """Refuses another GPU."""
        if not isinstance(device, torch.Tensor):
            target_of(device)

    def __enter__(self) -> None:
        """The device in use, now as before."""

    def __exit__(self, *_how: Any) -> None:
        """Likewise."""


def _of_the_device(answer: Callable[..., Any]) -> Callable[..., Any]:
    """A function that may be told the device, of which there is one."""

    def translated(device: Any = None, *_arguments: Any, **_named: Any) -> Any:
        target_of(device)
        return answer()

    return translated


def _of_nothing(answer: Callable[[], Any]) -> Callable[..., Any]:
    return lambda *_arguments, **_named: answer()


def _unless_torch_asks(answer: Any, original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """What torch itself asks is answered by torch: that there is no GPU: see `asked_by_torch`."""
    return original(*arguments, **named) if asked_by_torch() else answer


def _set_rng_state(state: torch.Tensor, device: Any = None) -> None:
    target_of(device)
    if state.numel() != torch.get_rng_state().numel():
        raise UntranslatedError(
            "the state of a real GPU's generator",
            "it draws from torch's CPU generator, whose state has another size",
            "start without it: what is drawn differs from what that GPU would draw in any case",
        )
    torch.set_rng_state(state)


def _set_rng_state_all(states: Any) -> None:
    for index, state in enumerate(states):
        check_index(index)
        _set_rng_state(state)


def _functions(runtime: Runtime, memory: MemoryFunctions) -> dict[str, Any]:
    info = runtime.device.info()
    of_the_device = {
        "get_device_name": lambda: info.name,
        "get_device_capability": lambda: CAPABILITY,
        "get_device_properties": lambda: EmulatedProperties(info.name, info.total_bytes),
        "set_device": lambda: None,
        "synchronize": lambda: None,
        "current_stream": lambda: streams.CURRENT,
        "default_stream": lambda: streams.CURRENT,
        "get_rng_state": torch.get_rng_state,
        "utilization": lambda: 0,
        **memory.functions(),
    }
    of_nothing = {
        "current_device": own_index,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda: True,
        "is_current_stream_capturing": lambda: False,
        "can_device_access_peer": lambda: False,
        "get_allocator_backend": lambda: "umadvise",
        "get_sync_debug_mode": lambda: 0,
        "initial_seed": torch.initial_seed,
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "get_per_process_memory_fraction": lambda: 1.0,
        # There is no cache of its own, and no generator of its own: torch.manual_seed seeds the one that it draws from.
        **dict.fromkeys(
            ("init", "empty_cache", "ipc_collect", "manual_seed", "manual_seed_all", "seed", "seed_all", "set_stream"),
            lambda: None,
        ),
        "set_sync_debug_mode": lambda: None,
    }
    return {
        **{name: _of_the_device(answer) for name, answer in of_the_device.items()},
        **{name: _of_nothing(answer) for name, answer in of_nothing.items()},
        "set_rng_state": _set_rng_state,
        "set_rng_state_all": _set_rng_state_all,
        "set_per_process_memory_fraction": _set_memory_fraction,
        "device": DeviceContext,
        "device_of": DeviceContext,
        "stream": streams.StreamContext,
        "StreamContext": streams.StreamContext,
        "default_generators": (torch.default_generator,),
        "Stream": streams.Stream,
        "Event": streams.Event,
    }


def _refused(name: str, original: Any) -> Any:
    """Refuses every call; what was a class stays one, since annotations name it."""
    words = "nothing on it means the same", "leave it out, or run the script on a GPU"
    refuse = refusing(UntranslatedError, name, *words)
    return type(original.__name__, (), {"__new__": refuse}) if isinstance(original, type) else refuse


_no_fraction = refusing(
    UntranslatedError,
    "torch.cuda.set_per_process_memory_fraction",
    "its memory is what --capacity says",
    "use --budget instead",
)


def _set_memory_fraction(fraction: float, device: Any = None) -> None:
    target_of(device)
    if fraction < 1:  # all of it is what it is already
        _no_fraction()


_lazy_init = refusing(
    UntranslatedError,
    "this use of CUDA (the line is in the traceback)",
    "torch would set CUDA up for it",
    'write "cpu" there, or tensor.device, or run the script on a GPU',
)
"""Where torch itself arrives when CUDA is used in a way that nothing here has translated."""


def _replace_everywhere(replaced: Replacements, name: str, replacement: Any) -> None:
    """In `torch.cuda`, and in the module of it that the function is defined in."""
    original = getattr(torch.cuda, name)
    replaced.put(torch.cuda, name, replacement)
    for module in (torch.cuda.memory, torch.cuda.random, torch.cuda.streams, torch.cuda.graphs):
        if vars(module).get(name) is original:
            replaced.put(module, name, replacement)


def install(replaced: Replacements, runtime: Runtime) -> None:
    """Replaces what `torch.cuda` and `torch.accelerator` offer."""
    memory = MemoryFunctions(runtime.device)
    memory.peaks.install(replaced)
    functions = _functions(runtime, memory)
    answers = {"is_available": True, "device_count": ranks().local_count}
    for name in sorted(torch.cuda.__all__):
        if name in functions:
            _replace_everywhere(replaced, name, functions[name])
        elif name in answers:
            replaced.around(torch.cuda, name, partial(_unless_torch_asks, answers[name]))
        elif name not in LEFT_ALONE and not name.endswith(("Tensor", "Storage")):
            _replace_everywhere(replaced, name, _refused(f"torch.cuda.{name}", getattr(torch.cuda, name)))
    replaced.put(torch.cuda, "_lazy_init", _lazy_init)
    for module in _REFUSED_MODULES:
        owner = importlib.import_module(f"torch.cuda.{module}")
        for name, value in list(vars(owner).items()):
            if isinstance(value, FunctionType) and value.__module__.startswith("torch."):
                replaced.put(owner, name, _refused(f"{owner.__name__}.{name}", value))
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        replaced.put(torch.cuda.nvtx, name, _of_nothing(lambda: 0))
    replaced.put(torch.cuda.nvtx, "range", _nothing_within)
    for name in ("start", "stop"):
        replaced.put(torch.cuda.profiler, name, _of_nothing(lambda: None))
    replaced.put(torch.cuda.profiler, "profile", _nothing_within)
    _install_accelerator(replaced, functions)


def _install_accelerator(replaced: Replacements, functions: dict[str, Any]) -> None:
    """`torch.accelerator` says the same in newer words."""
    answers = {
        "is_available": True,
        "device_count": ranks().local_count,
        "current_accelerator": torch.device("cuda"),
        "current_device_index": own_index(),
        "current_device_idx": own_index(),
    }
    for name, answer in answers.items():
        replaced.around(torch.accelerator, name, partial(_unless_torch_asks, answer))
    same = {name: name for name in torch.accelerator.__all__ if name in functions}
    others = {"get_memory_info": "mem_get_info", "set_device_index": "set_device", "set_device_idx": "set_device"}
    for name, cuda_name in {**same, **others}.items():
        if hasattr(torch.accelerator, name):
            # Another object: torch.compile knows functions by their identity, and takes each for one thing.
            replaced.put(torch.accelerator, name, partial(functions[cuda_name]))
