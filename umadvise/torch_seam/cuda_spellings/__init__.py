"""CUDA's spellings on the emulated device, while `umadvise run` runs a script that was written for a GPU.

What a spelling means is put onto the emulated device or answered from it; what has no meaning there is refused by name.
torch itself goes on to see a machine without a GPU, so every kernel and every default is the CPU's: results are those
of the same script with "cpu" for "cuda", to the last bit, except in code that asks `tensor.is_cuda`.
"""

import contextlib
from collections.abc import Iterator

import torch
from torch.jit import _builtins

from umadvise import _native
from umadvise.torch_seam.cuda_spellings import (
    backends,
    device,
    distributed,
    factories,
    loading,
    precision,
    refused,
    streams,
    tensors,
)
from umadvise.torch_seam.eager_compile import Compiler
from umadvise.torch_seam.replacements import Replacements
from umadvise.torch_seam.runtime import Runtime


@contextlib.contextmanager
def translated(runtime: Runtime) -> Iterator[None]:
    """Translates in the whole process until the `with` ends.

    Args:
        runtime: patched, with the emulated device.
    """
    replaced, compiler = Replacements(), Compiler()
    with contextlib.ExitStack() as undo:
        undo.callback(replaced.undo)
        undo.callback(compiler.undo)
        undo.enter_context(refused.no_triton())
        _native.set_device_constructor(torch.device, True)
        undo.callback(_native.set_device_constructor, torch.device, False)
        undo.callback(streams.forget_streams)
        known_to_script = _builtins._get_builtin_table()  # it keeps what it finds first: torch's own functions
        for part in (backends, factories, tensors, precision, loading, refused):
            part.install(replaced)
        device.install(replaced, runtime)
        if torch.distributed.is_available():
            distributed.install(replaced)
        replaced.around(torch, "compile", compiler.compile)
        for name in factories.FACTORIES:  # TorchScript knows them by identity
            identity = id(getattr(torch, name))
            known_to_script[identity] = f"aten::{name}"
            undo.callback(known_to_script.pop, identity, None)
        yield
