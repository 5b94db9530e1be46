"""Living in a process: forks, workers, other handlers of SIGSEGV, genuine crashes, Ctrl-C."""

import faulthandler
import gc
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from small_networks import same_bits
from torch import nn
from torch.utils.data import DataLoader, Dataset

import umadvise
from umadvise import _native

Run = Callable[..., "subprocess.CompletedProcess[str]"]
PAGES = "import torch, umadvise\nx = torch.arange(8 << 20, dtype=torch.float32)\n"


# ---- fork ----------------------------------------------------------------------------------------------------------


def in_child(work: Callable[[], bool]) -> int:
    """Exit status of a forked child: 0 where `work` says True; negative for a signal."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """OpenMP's threads do not survive a fork, in any program: children that compute must not need them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_a_child_computes_in_ordinary_memory_and_leaves(patched: Callable[..., _native.Device]) -> None:
    patched()
    kept = torch.arange(1 << 20)

    def work() -> bool:
        made = torch.arange(1000)
        copied = made.to("cpu") + 1
        return not umadvise.on_device(made) and int(copied.sum()) == 1000 * 999 // 2 + 1000

    assert in_child(work) == 0
    assert int(kept.sum()) == (1 << 20) * ((1 << 20) - 1) // 2


def test_a_child_drops_what_it_inherited(patched: Callable[..., _native.Device]) -> None:
    patched()
    held = [torch.ones(1 << 20)]

    def work() -> bool:
        held.clear()  # frees that are none of its business
        umadvise.unpatch()
        return not umadvise.on_device(torch.ones(10))

    assert in_child(work) == 0
    assert held[0].sum() == 1 << 20
    assert umadvise.on_device(torch.ones(10))


def test_a_child_leaves_a_session(python: Run) -> None:
    finished = python(
        """
        import os, sys, torch, umadvise
        model = torch.nn.Linear(10, 10)
        with umadvise.session(model, device="emulated", capacity="16MiB") as um:
            with um.step():
                child = os.fork()
                if child == 0:
                    sys.exit(4)  # through both exits
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
            assert umadvise.on_device(model(torch.ones(2, 10)))
        assert um.profile().step_count == 1
        """
    )
    assert (finished.returncode, finished.stderr) == (0, "")


def test_a_child_that_uses_the_device_is_told(python: Run) -> None:
    """An op raises; who goes to the address behind torch's back dies, with a message."""
    finished = python(
        """
        import os, torch, umadvise
        umadvise.patch(device=umadvise.EmulatedDevice(capacity="16MiB"))
        x = torch.ones(100)
        array = x.numpy()
        child = os.fork()
        if child == 0:
            try:
                x.sum()
            except RuntimeError as error:
                assert "forked" in str(error) and "spawn" in str(error), error
                array.sum()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -11
        assert float(x.sum()) == 100
        """
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr.startswith("umadvise: a forked child touched memory of the emulated device")
    assert "spawn" in finished.stderr


def test_a_child_that_asks_for_the_device_gets_an_error(patched: Callable[..., _native.Device]) -> None:
    patched()

    def work() -> bool:
        try:
            torch.ones(3).to("cuda")
        except umadvise.errors.UmadviseError as error:
            return "fork" in str(error)
        except RuntimeError as error:
            return "fork" in str(error)
        return False

    assert in_child(work) == 0


class Squares(Dataset[tuple[torch.Tensor, int]]):
    """Data in ordinary memory, as a loader's are; made before the session."""

    def __init__(self) -> None:
        self.data = torch.arange(64.0).reshape(64, 1).expand(64, 16).contiguous()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.data[index].square() + torch.zeros(16), index


@pytest.mark.parametrize("persistent", [True, False])
def test_workers_of_a_loader(persistent: bool) -> None:
    dataset = Squares()
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)

    def train(to_device: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        nn.init.ones_(model.weight)
        nn.init.zeros_(model.bias)
        seen, losses = [], []
        loader = DataLoader(dataset, batch_size=16, shuffle=True, num_workers=2, persistent_workers=persistent)
        for _ in range(2):
            for x, index in loader:
                assert torch.equal(x[:, 0], index.to(x.dtype).square())
                loss = model(to_device(x)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.detach())
                seen += index.tolist()
        assert sorted(seen) == sorted([*range(64), *range(64)])
        return losses

    expected = train(lambda x: x)
    with umadvise.session(model, optimizer, device="emulated", capacity="16MiB") as um:
        found = train(um.to_device)
        assert umadvise.on_device(model.weight)
        assert all(map(same_bits, found, expected))


def test_devices_come_and_go() -> None:
    """Thirty sessions: no thread or descriptor is left of any, and no mapping of each.

    Where the C library finds room for its own differs until holes of all sizes are there.
    """

    def held() -> tuple[int, int, int]:
        mappings = Path("/proc/self/maps").read_text().count("\n")
        return len(list(Path("/proc/self/task").iterdir())), mappings, len(list(Path("/proc/self/fd").iterdir()))

    model = nn.Linear(512, 512)
    optimizer = torch.optim.AdamW(model.parameters())
    seen = []
    for _ in range(30):
        with umadvise.session(model, optimizer, device="emulated", capacity="16MiB") as um, um.step():
            model(torch.randn(8, 512)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        gc.collect()
        seen.append(held())
    (threads, mappings, descriptors), (threads_before, mappings_before, descriptors_before) = seen[-1], seen[14]
    assert (threads, descriptors) == (threads_before, descriptors_before)
    assert mappings - mappings_before < 15 / 2


# ---- other handlers ------------------------------------------------------------------------------------------------

TOUCH = PAGES + "x.add_(1)\nassert float(x[5]) == 6\nprint('served')\n"
PATCH = "import umadvise\numadvise.patch(device=umadvise.EmulatedDevice(capacity='16MiB'))\n"


@pytest.mark.parametrize(
    "script",
    [
        "import faulthandler\nfaulthandler.enable()\n" + PATCH + TOUCH,
        PATCH + "import faulthandler\nfaulthandler.enable()\n" + TOUCH,
        PATCH + TOUCH + "import faulthandler\nfaulthandler.enable()\nfaulthandler.disable()\n" + TOUCH,
    ],
    ids=["before", "after", "on and off"],
)
def test_faulthandler(script: str, python: Run) -> None:
    finished = python(script)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert "served" in finished.stdout


def test_faulthandler_in_this_process(patched: Callable[..., _native.Device]) -> None:
    was_enabled = faulthandler.is_enabled()
    patched("16MiB")
    faulthandler.enable()
    x = torch.ones(8 << 20)
    assert x.add_(1).sum() == 16 << 20
    umadvise.unpatch()
    assert x.add_(1).sum() == 24 << 20  # survivors fault too
    if not was_enabled:
        faulthandler.disable()


@pytest.mark.parametrize("crash", ["ctypes.string_at(0)", "ctypes.memset(16, 1, 1)", "os.kill(os.getpid(), 11)\n" * 2])
@pytest.mark.parametrize("state", ["patched", "unpatched", "without faulthandler"])
def test_a_genuine_crash_still_crashes(crash: str, state: str, python: Run) -> None:
    """The same end and, with faulthandler, the same message as without umadvise.

    Of raised signals the first is taken for a fault that a handler above ours re-raised: the second one ends it.
    """
    enable = "" if state == "without faulthandler" else "import faulthandler\nfaulthandler.enable()\n"
    unpatch = "umadvise.unpatch()\n" if state == "unpatched" else ""
    script = "import ctypes, os, sys\n" + enable + PATCH + TOUCH + unpatch + "sys.stdout.flush()\n" + crash
    finished = python(script)
    assert finished.returncode == -signal.SIGSEGV
    assert finished.stdout == "served\n"
    if enable:
        assert finished.stderr.startswith("Fatal Python error: Segmentation fault")
        assert 'File "<string>"' in finished.stderr
    else:
        assert finished.stderr == ""


def test_a_page_that_nobody_allocated_is_a_crash_with_a_message(python: Run) -> None:
    finished = python(
        """
        import ctypes, torch, umadvise
        umadvise.patch(device=umadvise.EmulatedDevice(capacity="16MiB"))
        address = umadvise.torch_seam.runtime.address_of(torch.ones(1000))
        ctypes.string_at(address + (512 << 20))
        """
    )
    assert finished.returncode == -signal.SIGSEGV
    assert finished.stderr.startswith("umadvise: access to emulated device memory that is not allocated: 0x")


# ---- the end of a process ------------------------------------------------------------------------------------------


def test_ctrl_c_gives_tensors_back(python: Run) -> None:
    finished = python(
        """
        import os, signal, torch, umadvise
        signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background inherit that it is ignored
        model = torch.nn.Linear(100, 100)
        optimizer = torch.optim.AdamW(model.parameters())
        try:
            with umadvise.session(model, optimizer, device="emulated", capacity="16MiB") as um:
                while True:
                    with um.step():
                        model(torch.randn(10, 100)).sum().backward()
                        optimizer.step()
                        os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            assert not any(map(umadvise.on_device, model.parameters()))
            assert not umadvise.torch_seam.runtime.is_patched()
            model(torch.randn(10, 100)).sum().backward()
            print("stopped after", um.profile().step_count)
        """
    )
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "stopped after 1\n", "")


@pytest.mark.parametrize("ending", ["", "sys.exit(3)", "os._exit(3)", "raise ValueError('no')"])
def test_ends_while_patched(ending: str, python: Run) -> None:
    finished = python("import os, sys\n" + PATCH + TOUCH + "sys.stdout.flush()\n" + ending)
    assert finished.returncode == {"": 0, "raise ValueError('no')": 1}.get(ending, 3)
    assert finished.stdout == "served\n"
    assert finished.stderr == "" or finished.stderr.endswith("ValueError: no\n")


def test_threads_that_outlive_the_patch(patched: Callable[..., _native.Device]) -> None:
    """A worker thread goes on with tensors of the device while it is patched, and after."""
    import threading

    patched("16MiB")
    x = torch.zeros(6 << 20)
    go, done = threading.Event(), threading.Event()

    def work() -> None:
        x.add_(1)
        done.set()
        go.wait(60)
        x.add_(1)

    thread = threading.Thread(target=work)
    thread.start()
    assert done.wait(60)
    umadvise.unpatch()
    go.set()
    thread.join()
    assert x.eq(2).all()
