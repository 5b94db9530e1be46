"""Prints CMake's options for the conformance tests: the headers of CUDA 12 and 13, as PyPI packages bring them."""

import importlib.util
from pathlib import Path

# nvidia-cuda-runtime-cu12 and nvidia-cuda-runtime
FOLDERS = {"UMADVISE_CUDA12_INCLUDE": "cuda_runtime", "UMADVISE_CUDA13_INCLUDE": "cu13"}

nvidia = importlib.util.find_spec("nvidia")
for variable, folder in FOLDERS.items():
    for root in (nvidia and nvidia.submodule_search_locations) or ():
        if Path(root, folder, "include", "cuda.h").is_file():
            print(f"-D{variable}={root}/{folder}/include")
