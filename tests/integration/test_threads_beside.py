"""Threads that a session knows nothing of use its tensors, while these come and go."""

import _thread
import io
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import umadvise

MIB = 1 << 20


def saved(tensor: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    loaded: torch.Tensor = torch.load(file)
    return loaded


@pytest.mark.parametrize("read", [torch.clone, torch.Tensor.cpu, saved], ids=["clone", "cpu", "save"])
def test_it_reads_what_is_there(read: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """In a thread that is started within the session, and in a pool's that is older."""
    with ThreadPoolExecutor(1) as older:
        older.submit(torch.ones, 2).result()
        device = umadvise.EmulatedDevice(capacity="32MiB")
        with umadvise.session(torch.nn.Linear(2, 2), device=device, policy="swap"):
            tensors = [torch.full((4 * MIB,), value, dtype=torch.uint8) for value in range(8)]
            ended = threading.Event()
            wrong: list[str] = []

            def work() -> None:
                while not ended.is_set():
                    found = read(tensors[0])
                    if int(found.max()) != 0:
                        wrong.append(f"{int(found.max())}")

            thread = threading.Thread(target=work)
            thread.start()
            task = older.submit(work)
            for _ in range(12):
                for tensor in tensors[1:]:
                    tensor.add_(0)
            ended.set()
            thread.join()
            task.result()
            assert wrong == []
            assert [(int(each.min()), int(each.max())) for each in tensors] == [(value, value) for value in range(8)]


def test_it_writes_where_the_tensor_is() -> None:
    with umadvise.session(
        torch.nn.Linear(2, 2), device=umadvise.EmulatedDevice(capacity="32MiB"), policy="swap"
    ) as session:
        tensors = [torch.full((4 * MIB,), value, dtype=torch.uint8) for value in range(8)]
        ended = threading.Event()

        def work() -> None:
            while not ended.is_set():
                for tensor in tensors[1:]:
                    tensor.add_(0)

        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(12):
            assert int(tensors[0].max()) == 0
        ended.set()
        thread.join()
        assert [(int(each.min()), int(each.max())) for each in tensors] == [(value, value) for value in range(8)]
        assert session.swap_counters().swap_outs > 0


def test_threads_below_those_of_threading_hold_what_they_use() -> None:
    """Whoever starts them by `_thread`: their ops come to the interposer."""
    told: list[bool] = []
    ended = threading.Event()

    def work(tensor: torch.Tensor, *, say: Callable[[], None]) -> None:
        key = torch._C._dispatch_key_parse("TESTING_ONLY_GenericMode")
        told.append(torch._C._dispatch_tls_is_dispatch_key_included(key) and int(tensor.sum()) == 3)
        say()

    device = umadvise.EmulatedDevice(capacity="32MiB")
    with umadvise.session(torch.nn.Linear(2, 2), device=device, policy="swap"):
        _thread.start_new_thread(work, (torch.ones(3),), {"say": ended.set})
        assert ended.wait(20)
    assert told == [True]
