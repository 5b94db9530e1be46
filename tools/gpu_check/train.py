"""examples/bert_large.py with kernels that repeat to the last bit; `--stand-in` replaces BERT and its text."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))


def repeatable() -> None:
    """Picks kernels that do the same sums in the same order each time (needs CUBLAS_WORKSPACE_CONFIG=:4096:8).

    Unlike the example this goes on where there is no such kernel: the second vanilla run tells whether it mattered.
    """
    torch.use_deterministic_algorithms(True, warn_only=True)
    # It would write, and so fault, what nobody asked for.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic = True
    # The backward pass of these two adds up in any order; the plain products that remain do not.
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_flash_sdp(False)


if __name__ == "__main__":
    torch.set_num_threads(1)  # of the CPU, for dry runs on a busy machine
    if "--stand-in" in sys.argv:
        sys.argv.remove("--stand-in")
        import stand_in

        stand_in.install()
    import bert_large

    bert_large.make_gpu_repeatable = repeatable
    sys.exit(bert_large.main())
