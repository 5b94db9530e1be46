"""What the machine has, as JSON: `python probe.py cuda`. A process of its own, as looking at a GPU sets CUDA up."""

import importlib.util
import json
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

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


if __name__ == "__main__":
    found = _device(sys.argv[1])
    print(
        json.dumps(
            {
                "device": found if isinstance(found, dict) else None,
                "no_device": found if isinstance(found, str) else None,
                "python": platform.python_version(),
                "packages": {package: _version(package) for package in _PACKAGES},
                "ram_bytes": _memory_bytes("MemTotal"),
                "available_bytes": _memory_bytes("MemAvailable"),
            }
        )
    )
