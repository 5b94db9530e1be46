"""Sessions beside sessions, steps beside steps, tasks and children: one at a time, and in words where it is not so."""

import asyncio
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from small_networks import same_bits
from test_process import in_child
from torch import nn

import umadvise
from umadvise.errors import StateError
from umadvise.torch_seam import runtime

MIB = 1 << 20
STEPS = 4
WIDTH = 512
Trained = tuple[nn.Module, torch.optim.Optimizer]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def network(seed: int = 0) -> Trained:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 32)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def learn(trained: Trained, index: int, put: Callable[[torch.Tensor], torch.Tensor] = lambda x: x) -> torch.Tensor:
    model, optimizer = trained
    loss: torch.Tensor = model(put(torch.linspace(-1, 1, 16 * WIDTH).reshape(16, WIDTH) * (1 + index))).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach().clone()


def session(*trained: Trained, budget: str = "16MiB", device: str | None = "emulated") -> Any:
    models, optimizers = zip(*trained, strict=True)
    return umadvise.session(list(models), list(optimizers), device=device, budget=budget, policy="swap")


def step(um: Any, trained: Trained, index: int) -> torch.Tensor:
    with um.step():
        return learn(trained, index, um.to_device)


def plain(seed: int = 0) -> tuple[list[torch.Tensor], Trained]:
    trained = network(seed)
    return [learn(trained, index) for index in range(STEPS)], trained


def equal(losses: list[torch.Tensor], trained: Trained, seed: int = 0) -> bool:
    """Whether losses and parameters are those of plain PyTorch to the last bit."""
    expected, reference = plain(seed)
    found = zip(trained[0].parameters(), reference[0].parameters(), strict=True)
    return all(map(same_bits, losses, expected)) and all(
        same_bits(one.detach(), other.detach()) for one, other in found
    )


# ---- sessions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["emulated", None])
@pytest.mark.parametrize("in_step", [True, False])
def test_a_session_within_a_session_is_refused_and_harms_nothing(device: str | None, in_step: bool) -> None:
    outer, losses = network(), []
    with session(outer) as um:
        for index in range(STEPS):
            with ExitStack() as inner:
                if in_step:
                    inner.enter_context(um.step())
                with pytest.raises(StateError, match=r"a session is open already.*all models and optimizers"):
                    inner.enter_context(session(network(1), device=device))
                with pytest.raises(StateError, match="a session is open already"):
                    umadvise.patch(device="emulated")
                if in_step:
                    losses.append(learn(outer, index, um.to_device))
            if not in_step:
                losses.append(step(um, outer, index))
        assert um.swap_counters().swap_ins > 0
    assert equal(losses, outer)
    assert not runtime.is_patched()


TWO_SESSIONS = """
import torch, umadvise
from test_sessions_beside import STEPS, equal, network, session, step
torch.set_num_threads(1)
for seed in range(2):
    trained, losses = network(seed), []
    with session(trained, device=None) as um:
        for index in range(STEPS):
            try:
                with session(network(2), device=None):
                    print("opened")
            except umadvise.errors.StateError as error:
                assert "a session is open already" in str(error), error
            losses.append(step(um, trained, index))
        assert um.swap_counters().swap_ins > 0
    print(equal(losses, trained, seed))
"""


def test_a_session_within_a_session_is_refused_in_a_script(python: Run, tmp_path: Path) -> None:
    """Under `umadvise run` the device is that of the run; two sessions after each other are allowed."""
    (tmp_path / "script.py").write_text(TWO_SESSIONS)
    finished = python(
        """
        import sys
        from umadvise.__main__ import main
        sys.exit(main(["run", "--device", "emulated", "--policy", "swap", "--budget", "16MiB", sys.argv[1]]))
        """,
        str(tmp_path / "script.py"),
    )
    assert (finished.returncode, finished.stdout) == (0, "True\nTrue\n"), finished.stderr


def test_of_threads_that_open_sessions_at_once_one_does() -> None:
    """The others are told, and torch is as before when it has ended."""
    before = torch.Tensor.numpy, torch.Tensor.data_ptr, threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
    for _ in range(3):
        begin, tried = threading.Barrier(4), threading.Barrier(4)
        found: list[bool] = []
        refused: list[str] = []

        def work(
            begin: threading.Barrier = begin,
            tried: threading.Barrier = tried,
            found: list[bool] = found,
            refused: list[str] = refused,
        ) -> None:
            trained, um = network(), None
            begin.wait(60)
            with ExitStack() as stack:
                try:
                    um = stack.enter_context(session(trained))
                except StateError as error:
                    refused.append(str(error))
                tried.wait(60)
                losses = [step(um, trained, index) for index in range(STEPS)] if um else []
            if um:
                found.append(equal(losses, trained))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert found == [True]
        assert len(refused) == 3
        assert all("a session is open already" in each for each in refused)
        assert not runtime.is_patched()
        assert not umadvise.on_device(torch.ones(3))
    assert before == (torch.Tensor.numpy, torch.Tensor.data_ptr, threading.Thread._bootstrap_inner)  # type: ignore[attr-defined]


def test_a_session_is_used_and_closed_by_another_thread() -> None:
    trained, losses = network(), []
    um = session(trained).__enter__()
    losses += [step(um, trained, index) for index in range(2)]

    def work() -> None:
        losses.extend(step(um, trained, index) for index in range(2, STEPS))
        um.__exit__(None, None, None)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(120)
    assert equal(losses, trained)
    assert not runtime.is_patched()
    assert not umadvise.on_device(torch.ones(3))


# ---- asyncio --------------------------------------------------------------------------------------------------------


def test_tasks_take_turns_with_their_steps() -> None:
    first, second = network(0), network(1)

    async def train(um: Any, trained: Trained) -> list[torch.Tensor]:
        losses = []
        for index in range(STEPS):
            losses.append(step(um, trained, index))
            await asyncio.sleep(0)
        return losses

    async def both() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        with session(first, second, budget="24MiB") as um:
            return await asyncio.gather(train(um, first), train(um, second))

    losses = asyncio.run(both())
    assert equal(losses[0], first, 0)
    assert equal(losses[1], second, 1)


def test_steps_that_overlap_are_refused_and_harm_nothing() -> None:
    """The task that has the step goes on with it; the other one is told before it has done anything."""
    first, second = network(0), network(1)

    async def train(um: Any, trained: Trained) -> list[torch.Tensor]:
        losses = []
        for index in range(STEPS):
            with um.step():
                await asyncio.sleep(0)
                losses.append(learn(trained, index, um.to_device))
                await asyncio.sleep(0)
        return losses

    async def both() -> tuple[Any, Any]:
        with session(first, second, budget="24MiB") as um:
            return await asyncio.gather(train(um, first), train(um, second), return_exceptions=True)

    losses, error = asyncio.run(both())
    assert equal(losses, first)
    assert isinstance(error, StateError)
    assert "a step is open already" in str(error)
    assert "await" in str(error)
    assert all(map(same_bits, second[0].parameters(), network(1)[0].parameters()))


def test_steps_in_a_pool_of_threads_that_tasks_wait_for() -> None:
    trained = network()

    async def train() -> list[torch.Tensor]:
        with session(trained) as um:
            return [await asyncio.to_thread(step, um, trained, index) for index in range(STEPS)]

    assert equal(asyncio.run(train()), trained)


def test_a_task_that_is_cancelled_within_a_step_ends_its_session() -> None:
    trained, losses = network(), []

    async def train(begun: asyncio.Event) -> None:
        with session(trained) as um:
            for index in range(100):
                if index == STEPS:
                    begun.set()
                with um.step():
                    await asyncio.sleep(0)
                    losses.append(learn(trained, index, um.to_device))

    async def cancel() -> None:
        begun = asyncio.Event()
        task = asyncio.create_task(train(begun))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert len(losses) == STEPS
    assert equal(losses, trained)
    assert not runtime.is_patched()


# ---- children and the end of a process -----------------------------------------------------------------------------


def test_a_forked_child_of_a_session_is_told_to_be_spawned() -> None:
    trained, losses = network(), []

    def opens(device: str | None) -> bool:
        try:
            with session(network(), device=device):
                return False
        except StateError as error:
            return "forked" in str(error) and "spawn" in str(error)

    with session(trained) as um:
        for index in range(STEPS):
            losses.append(step(um, trained, index))
            assert in_child(lambda: opens("emulated")) == 0
            assert in_child(lambda: opens(None)) == 0
            assert in_child(lambda: equal(*plain())) == 0
    assert equal(losses, trained)


def test_a_child_is_forked_while_another_thread_opens_a_session() -> None:
    """It may patch for itself: the lock of the thread that it does not have is not held there."""
    holds, ended = threading.Event(), threading.Event()

    def work() -> None:
        with umadvise.torch_seam.patching.one_at_a_time():
            holds.set()
            ended.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    assert holds.wait(60)
    try:
        assert in_child(lambda: bool(umadvise.torch_seam.patching.one_at_a_time().__enter__() is None)) == 0
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("part", ["step", "session"])
def test_a_loop_that_python_ends_ends_without_a_word(part: str, python: Run) -> None:
    """A generator that is alive when Python ends is closed when most modules are gone."""
    finished = python(
        f"""
        import torch
        from test_sessions_beside import learn, network, session
        torch.set_num_threads(1)
        def loop():
            with session(trained) as um:
                while True:
                    with um.step():
                        learn(trained, 0, um.to_device)
                        if {part == "step"}:
                            yield
                    yield
        trained = network()
        steps = loop()
        next(steps)
        print("one step")
        """
    )
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "one step\n", "")


@pytest.mark.parametrize("late", ["atexit", "__del__"])
def test_tensors_are_used_while_python_ends(late: str, python: Run) -> None:
    finished = python(
        f"""
        import atexit, torch
        from test_sessions_beside import STEPS, equal, network, session, step
        torch.set_num_threads(1)
        trained = network()
        um = session(trained).__enter__()
        losses = [step(um, trained, index) for index in range(STEPS - 1)]
        def end():
            losses.append(step(um, trained, STEPS - 1))
            um.__exit__(None, None, None)
            print(equal(losses, trained))
        class Late:
            def __del__(self, trained=trained):
                print(len(list(trained[0].parameters())), bool(trained[0][0].weight.detach().sum() != 0))
        if "{late}" == "atexit":
            atexit.register(end)
        else:
            kept = Late()
        """
    )
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout == ("True\n" if late == "atexit" else "16 True\n")


def test_tensors_stay_where_the_host_has_no_memory_for_them(python: Run) -> None:
    """The session ends with a warning; the model goes on where it is, and the next session moves it back."""
    finished = python(
        """
        import resource
        from pathlib import Path
        import torch, umadvise
        from test_sessions_beside import STEPS, equal, learn, network, session, step
        torch.set_num_threads(1)
        trained = network()
        with session(trained) as um:
            losses = [step(um, trained, index) for index in range(STEPS - 2)]
            used_kib = int(Path("/proc/self/status").read_text().split("VmData:")[1].split()[0])
            resource.setrlimit(resource.RLIMIT_DATA, ((used_kib << 10) + (4 << 20), resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY,) * 2)
        assert 0 < sum(map(umadvise.on_device, trained[0].parameters())) < 16
        losses.append(learn(trained, STEPS - 2))
        with session(trained) as um:
            losses.append(step(um, trained, STEPS - 1))
        print(equal(losses, trained), sum(map(umadvise.on_device, trained[0].parameters())))
        """
    )
    assert (finished.returncode, finished.stdout) == (0, "True 0\n"), finished.stderr
    assert "stay on the device after the session, and valid: the host has no memory" in finished.stderr
