"""What the machine has, as JSON: `python machine.py cuda HOOKS msgspec numpy`.

HOOKS is a bundle's folder of extensions, what comes after it the packages that must be importable.

A process of its own, as looking at a GPU sets CUDA up.
"""

import importlib
import importlib.util
import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from prebuilt import HOOKS

_PACKAGES = ("torch", "msgspec", "rich", "pytest", "transformers", "tokenizers", "numpy")


def _version(package: str) -> str | None:
    if importlib.util.find_spec(package) is None:
        return None
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def _memory_bytes(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/meminfo has no {name}: expected Linux")


def _device(kind: str) -> dict[str, Any] | str:
    """The device, or why there is none."""
    if kind == "emulated":
        return {"name": "umadvise emulated device", "free_bytes": _memory_bytes("MemAvailable") // 2}
    if _version("torch") is None:
        return "torch is not installed"
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA device"
    properties = torch.cuda.get_device_properties(0)
    free_bytes, total_bytes = torch.cuda.mem_get_info(0)
    return {
        "name": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "free_bytes": free_bytes,
        "total_bytes": total_bytes,
        "torch_cuda": torch.version.cuda,
    }


def _why_not(package: str) -> str | None:
    """Why it cannot be imported: it is really tried, as one may be there for another Python."""
    try:
        importlib.import_module(package)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _hooks(folder: Path) -> dict[str, str | None]:
    """The bundle's extension for this torch, and why it cannot be used; it is really loaded."""
    if _version("torch") is None:
        return {"library": None, "why_not": "torch is not installed"}
    from umadvise import _native
    from umadvise._hooks import loader

    library = folder / loader.build_name(loader.installed_torch()) / HOOKS
    if not library.is_file():
        return {"library": None, "why_not": "the bundle has none for this torch and these sources"}
    os.environ["UMADVISE_HOOKS_LIBRARY"] = str(library)
    try:
        _native.hooks_function("um_hooks_cuda_allocate")
    except Exception as error:
        return {"library": None, "why_not": str(error)}
    return {"library": str(library), "why_not": None}


if __name__ == "__main__":
    kind, hooks, *needed = sys.argv[1:]
    found = _device(kind)
    print(
        json.dumps(
            {
                "device": found if isinstance(found, dict) else None,
                "no_device": found if isinstance(found, str) else None,
                "needed": {package: _why_not(package) for package in needed},
                "hooks": _hooks(Path(hooks)),
                "python": platform.python_version(),
                "packages": {package: _version(package) for package in _PACKAGES},
                "ram_bytes": _memory_bytes("MemTotal"),
                "available_bytes": _memory_bytes("MemAvailable"),
            }
        )
    )
