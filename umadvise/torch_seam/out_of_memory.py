"""How it is said that memory does not suffice: as torch's own CUDA allocator begins to say it.

Programs that try again with a smaller batch know an error by these words, whatever its class.
"""

import torch


def out_of_memory(message: str) -> torch.OutOfMemoryError:
    """The error for what the core, in its words, has no room for."""
    return torch.OutOfMemoryError(f"CUDA out of memory. umadvise: {message}")
