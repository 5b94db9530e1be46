"""Prints CMake's options for the conformance tests: the headers of CUDA 12 and 13, as PyPI packages bring them.

Other versions, such as 12.2 and 12.8, are compared by naming their folder in place of the one that is printed:

    pip download --no-deps --dest headers 'nvidia-cuda-runtime-cu12==12.2.*' && unzip -d headers headers/*.whl
    cmake -DUMADVISE_CUDA12_INCLUDE=$PWD/headers/nvidia/cuda_runtime/include ...
"""

import importlib.util
from pathlib import Path

# nvidia-cuda-runtime-cu12, nvidia-cuda-runtime, nvidia-cuda-cupti-cu12 and nvidia-cuda-cupti
HEADERS = {
    "UMADVISE_CUDA12_INCLUDE": "cuda_runtime/include/cuda.h",
    "UMADVISE_CUDA13_INCLUDE": "cu13/include/cuda.h",
    "UMADVISE_CUPTI12_INCLUDE": "cuda_cupti/include/cupti.h",
    "UMADVISE_CUPTI13_INCLUDE": "cu13/include/cupti.h",
}

nvidia = importlib.util.find_spec("nvidia")
for variable, header in HEADERS.items():
    for root in (nvidia and nvidia.submodule_search_locations) or ():
        if Path(root, header).is_file():
            print(f"-D{variable}={Path(root, header).parent}")
