"""The functions of `torch.cuda`: one GPU a process, said to be emulated; what has no meaning is refused by name."""

import contextlib
import importlib
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType
from typing import Any

import torch

from umadvise.devices.ranks import ranks
from umadvise.errors import UntranslatedError
from umadvise.torch_seam.cuda_spellings import accelerator, build_names, data_parallel, streams
from umadvise.torch_seam.cuda_spellings.memory import MemoryFunctions
from umadvise.torch_seam.cuda_spellings.properties import CAPABILITY, EmulatedProperties
from umadvise.torch_seam.cuda_spellings.words import check_index, own_index, target_of
from umadvise.torch_seam.replacements import Replacements, refusing
from umadvise.torch_seam.runtime import Runtime

LEFT_ALONE = frozenset(
    (
        *("CudaError", "DeferredCudaCallError", "amp", "check_error", "cudaStatus", "graphs", "has_half", "has_magma"),
        *("is_tf32_supported", "memory", "nccl", "nvtx", "profiler", "random", "sparse", "streams", "tunable"),
        *("jiterator", "get_arch_list", "get_gencode_flags"),
    )
)
"""Of `torch.cuda`: types, modules whose functions are translated or refused, and what answers on any machine."""
_REFUSED_MODULES = ("nccl", "tunable", "jiterator")


@contextlib.contextmanager
def _nothing_within(*_arguments: Any, **_named: Any) -> Iterator[None]:
    yield


class DeviceContext:
    """`torch.cuda.device(0)`, `torch.cuda.device_of(tensor)` and `torch.accelerator.device_index(0)`."""

    def __init__(self, device: Any = None) -> None:
        """Refuses another GPU."""
        if not isinstance(device, torch.Tensor):
            target_of(device)
        self.idx = self.prev_idx = own_index()

    def __enter__(self) -> None:
        """Changes nothing: there is one device."""

    def __exit__(self, *_how: Any) -> None:
        """Changes nothing: there is one device."""


def _of_the_device(answer: Callable[..., Any]) -> Callable[..., Any]:
    """A function that may be told the device, of which there is one."""

    def translated(device: Any = None, *_arguments: Any, **_named: Any) -> Any:
        target_of(device)
        return answer()

    return translated


def _of_nothing(answer: Callable[[], Any]) -> Callable[..., Any]:
    return lambda *_arguments, **_named: answer()


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
        "current_stream": streams.current_stream,
        "default_stream": lambda: streams.DEFAULT,
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
            ("init", "empty_cache", "ipc_collect", "manual_seed", "manual_seed_all", "seed", "seed_all"),
            lambda: None,
        ),
        "set_sync_debug_mode": lambda: None,
    }
    return {
        **{name: _of_the_device(answer) for name, answer in of_the_device.items()},
        **{name: _of_nothing(answer) for name, answer in of_nothing.items()},
        "set_rng_state": _set_rng_state,
        "set_rng_state_all": _set_rng_state_all,
        "set_per_process_memory_fraction": memory.set_fraction,
        "set_stream": streams.set_stream,
        "get_stream_from_external": streams.ExternalStream,
        "device": DeviceContext,
        "device_of": DeviceContext,
        "stream": streams.StreamContext,
        "StreamContext": streams.StreamContext,
        "default_generators": (torch.default_generator,) * ranks().local_count,
        "Stream": streams.Stream,
        "ExternalStream": streams.ExternalStream,
        "Event": streams.Event,
    }


def _refused(name: str, original: Any) -> Any:
    """Refuses every call; what was a class stays one, since annotations name it."""
    words = "nothing on it means the same", "leave it out, or run the script on a GPU"
    refuse = refusing(UntranslatedError, name, *words)
    return type(original.__name__, (), {"__new__": refuse}) if isinstance(original, type) else refuse


_lazy_init = refusing(
    UntranslatedError,
    "this use of CUDA (the line is in the traceback)",
    "torch would set CUDA up for it",
    'write "cpu" there, or tensor.device, or run the script on a GPU',
)
"""Where torch itself arrives when CUDA is used in a way that nothing here has translated."""


_CLASSES = {
    "_CudaDeviceProperties": EmulatedProperties,
    "_CudaEventBase": streams.Event,
    "_CudaStreamBase": streams.Stream,
}


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
    cudart = build_names.Cudart(memory.free_and_total)
    functions = {**_functions(runtime, memory), "cudart": lambda: cudart}
    answers = {"is_available": True, "device_count": ranks().local_count}
    for name in sorted(torch.cuda.__all__):
        if name in functions:
            _replace_everywhere(replaced, name, functions[name])
        elif name in answers:
            replaced.around(torch.cuda, name, partial(accelerator.unless_torch_asks, answers[name]))
        elif name not in LEFT_ALONE and not name.endswith(("Tensor", "Storage")):
            _replace_everywhere(replaced, name, _refused(f"torch.cuda.{name}", getattr(torch.cuda, name)))
    replaced.put(torch.cuda, "_lazy_init", _lazy_init)
    build_names.install(replaced, cudart, memory.of_build(), _CLASSES)
    data_parallel.install(replaced)
    for module in _REFUSED_MODULES:
        owner = importlib.import_module(f"torch.cuda.{module}")
        for name, value in list(vars(owner).items()):
            if isinstance(value, FunctionType) and value.__module__.startswith("torch."):
                replaced.put(owner, name, _refused(f"{owner.__name__}.{name}", value))
    replaced.put(torch.cuda.nccl, "is_available", lambda _tensors: False)
    for name in ("is_enabled", "tuning_is_enabled", "record_untuned_is_enabled"):
        replaced.put(torch.cuda.tunable, name, lambda: False)
    for name in ("_get_rng_state_offset", "_set_rng_state_offset", "_compile_kernel"):
        if hasattr(torch.cuda, name):
            replaced.put(torch.cuda, name, _refused(f"torch.cuda.{name}", getattr(torch.cuda, name)))
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        replaced.put(torch.cuda.nvtx, name, _of_nothing(lambda: 0))
    replaced.put(torch.cuda.nvtx, "range", _nothing_within)
    for name in ("start", "stop"):
        replaced.put(torch.cuda.profiler, name, _of_nothing(lambda: None))
    replaced.put(torch.cuda.profiler, "profile", _nothing_within)
    accelerator.install(replaced, functions)
