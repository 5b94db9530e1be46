"""Kernels that the CPU computes, for torch's CUDA build on stand-ins for a GPU (tests/torch_cuda/on_stand_ins.py)."""

import ctypes
import os


def install() -> None:
    """Puts them in place of CUDA's, where this process runs on the stand-ins."""
    if "STAND_IN_MIB" not in os.environ:
        return
    import torch

    ctypes.CDLL("libcuda_kernels.so").cuda_kernels_install()
    # What has no kernel of its own in torch is chosen no more: cuDNN, and attention in one kernel.
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
