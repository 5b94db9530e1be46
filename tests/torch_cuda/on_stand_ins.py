"""Runs a command with torch's CUDA build on stand-ins for a GPU: `python on_stand_ins.py [--build FOLDER] COMMAND...`.

The environment that it makes holds for all processes that the command starts. Where it is set already, nothing changes.
Settings, each read when a process first uses CUDA (csrc/tests/fake_libcuda/environment.cpp):

| variable | what | here |
|---|---|---|
| STAND_IN_MIB | memory of each GPU | 512 |
| STAND_IN_DEVICES | how many GPUs there are | 1 |
| STAND_IN_ASYNC | 1: kernels of the default stream too run later, in a thread of their stream | 0 |
| STAND_IN_DELAY_US | up to how long each piece of work of a stream waits before it begins | 0 |
| STAND_IN_SEED | of those delays | 0 |
| STAND_IN_LACKS | device attributes that are 0, by cuda.h's numbers, with commas: 89,102 | |
| STAND_IN_HOLLOW_US | what each kernel takes at least, computing nothing; 0: all compute | 0 |

Hollow GPUs may have more memory than the machine. Chunks have no bytes: copies of 64 KiB and more move none, and take
the time of a link with 16 GB/s; fills of as much take none. All results are meaningless, but which calls of the driver
a program comes to is real. Managed and plain memory are as ever.

Random numbers of "cuda" are torch's own affair: `torch.cuda.manual_seed` decides them.
"""

import os
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
BUILD = CHECKOUT / "build" / "native"
_LIBRARIES = ("emulated_libcuda/libcuda.so.1", "fake_libcudart/libcudart.so.13", "cuda_kernels/libcuda_kernels.so")


def libraries(build: Path = BUILD) -> list[Path]:
    """The driver, the runtime and the kernels.

    Args:
        build: where CMake has built them.

    Raises:
        SystemExit: one of them is not there.
    """
    found = [build / "tests" / name for name in _LIBRARIES]
    if missing := [str(path) for path in found if not path.is_file()]:
        raise SystemExit(f"no {' and no '.join(missing)}: `make test-torch-cuda` builds them")
    return found


def environment(build: Path = BUILD) -> dict[str, str]:
    """This process's environment, with the stand-ins in it.

    Args:
        build: as of `libraries`.

    Raises:
        SystemExit: as `libraries`.
    """
    made = dict(os.environ)
    if "STAND_IN_MIB" in made and "libcudart" in made.get("LD_PRELOAD", ""):
        return made
    _, runtime, _ = found = libraries(build)
    folders = [str(path.parent) for path in found]
    made["LD_LIBRARY_PATH"] = os.pathsep.join([*folders, *filter(None, [made.get("LD_LIBRARY_PATH")])])
    # torch's libraries have a DT_RPATH to NVIDIA's runtime, which comes before LD_LIBRARY_PATH.
    made["LD_PRELOAD"] = " ".join([*filter(None, [made.get("LD_PRELOAD")]), str(runtime)])
    # Each stream's thread would have a pool of its own, and sums are added up otherwise with another number of threads.
    made |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    made.setdefault("STAND_IN_MIB", "512")
    made.setdefault("UMADVISE_LIBRARY", str(build / "libumadvise.so"))
    return made


def main() -> None:
    """Becomes the command, which is one of this interpreter's: a program and its words, or -m and a module."""
    words = sys.argv[1:]
    build = BUILD
    if words[:1] == ["--build"]:
        build, words = Path(words[1]), words[2:]
    os.execve(sys.executable, [sys.executable, *words], environment(build))


if __name__ == "__main__":
    main()
