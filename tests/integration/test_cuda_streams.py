"""Streams, events and device-agnostic spellings while `umadvise run` runs a script on the emulated device."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import umadvise
from umadvise.devices.open_device import EmulatedDevice
from umadvise.errors import UntranslatedError
from umadvise.torch_seam.runtime import HOST, routed
from umadvise.training.script import ScriptRun


@pytest.fixture(autouse=True)
def translated() -> Iterator[None]:
    """This process as a script finds it under `umadvise run`, with 32 MiB."""
    with ScriptRun(EmulatedDevice(capacity="32MiB"), None, "advise", "script.py"):
        yield


def test_streams_and_events() -> None:
    stream = torch.cuda.Stream(priority=-1)
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with pytest.raises(ValueError, match="recorded"):
        begun.elapsed_time(ended)
    begun.record()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        tensor = torch.ones(4, device="cuda") * 2
        tensor.record_stream(stream)
    stream.record_event(ended)
    torch.cuda.current_stream().wait_event(ended)
    ended.synchronize()
    assert ended.query()
    assert begun.elapsed_time(ended) >= 0
    assert tensor.sum().item() == 8


STREAMS: dict[str, Callable[[], Any]] = {
    "cuda": lambda: torch.cuda.Stream(),
    "index": lambda: torch.cuda.Stream(0, -1),
    "current": lambda: torch.cuda.current_stream(),
    "default": lambda: torch.cuda.default_stream(torch.device(0)),
    "external": lambda: torch.cuda.ExternalStream(4096),
    "from external": lambda: torch.cuda.get_stream_from_external(4096),
    "any": lambda: torch.Stream(),
    "any of the accelerator": lambda: torch.Stream(torch.accelerator.current_accelerator(), priority=-1),
    "any of an index": lambda: torch.Stream(0),
    "numbers": lambda: torch.Stream(7, 0, 1),
    "accelerator": lambda: torch.accelerator.current_stream(),
    "private": lambda: torch.cuda.Stream(
        **dict(zip(("stream_id", "device_index", "device_type"), torch._C._cuda_getCurrentStream(0), strict=True))
    ),
}


@pytest.mark.parametrize("name", STREAMS)
def test_every_stream_is_torchs_and_the_gpus(name: str) -> None:
    """torch's C++ reads any object as a torch.Stream: what is none is undefined behaviour."""
    stream, other = STREAMS[name](), torch.Stream(device="cpu")
    assert isinstance(stream, torch.Stream)
    assert isinstance(stream, torch._C.Stream)
    assert isinstance(stream, torch.cuda.Stream)
    assert (stream.device, stream.device_index, stream.device_type) == (torch.device("cuda", 0), 0, 1)
    assert (stream.stream_id, stream.query(), stream.synchronize()) == (stream.cuda_stream, True, None)
    stream.wait_stream(other)
    assert stream != other  # torch's own code, in C++
    event = stream.record_event()
    assert event is stream.record_event(event)
    stream.wait_event(event)
    with stream:
        assert torch.cuda.current_stream() == stream == torch.accelerator.current_stream()
        assert torch._C._cuda_getCurrentRawStream(0) == stream.cuda_stream


def test_the_current_stream_is_the_threads() -> None:
    first, second = torch.cuda.Stream(), torch.Stream()
    assert len({first, second, torch.cuda.default_stream(), torch.cuda.current_stream()}) == 3
    seen: list[Any] = []
    with torch.cuda.stream(first), torch.cuda.StreamContext(None):
        assert torch.cuda.current_stream() == first
        with second:
            assert torch.cuda.current_stream() == second
        thread = threading.Thread(target=lambda: seen.append(torch.cuda.current_stream()))
        thread.start()
        thread.join()
        assert torch.cuda.current_stream() == first
    assert torch.cuda.current_stream() == torch.cuda.default_stream() == seen[0]
    for set_stream in (torch.cuda.set_stream, torch.accelerator.set_stream):
        set_stream(second)
        assert torch.cuda.current_stream() == second
        set_stream(torch.cuda.default_stream())


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.cuda.Event(True),
        lambda: torch.cuda.Event(enable_timing=True, blocking=True),
        lambda: torch.Event(enable_timing=True),
        lambda: torch.Event(torch.accelerator.current_accelerator(), enable_timing=True),
        lambda: torch.Event("cuda:0", enable_timing=True),
    ],
)
def test_every_event_is_torchs_and_the_gpus(make: Callable[[], Any]) -> None:
    begun, ended = make(), make()
    assert isinstance(begun, torch.Event)
    assert isinstance(begun, torch._C.Event)
    assert isinstance(begun, torch.cuda.Event)
    assert begun.cuda_event == 0
    begun.record(torch.Stream())
    torch.cuda.current_stream().record_event(ended)
    begun.wait(torch.cuda.current_stream())
    assert begun.elapsed_time(ended) >= 0
    assert begun.device == torch.device("cuda", 0)
    assert begun.event_id == begun.cuda_event not in (0, ended.cuda_event)
    with pytest.raises(UntranslatedError, match="ipc_handle"):
        begun.ipc_handle()


def test_streams_and_events_of_the_cpu_stay_torchs() -> None:
    stream, event = torch.Stream(device="cpu"), torch.Event("cpu")
    assert not isinstance(stream, torch.cuda.Stream)
    assert not isinstance(event, torch.cuda.Event)
    assert isinstance(stream, torch.Stream)
    assert isinstance(event, torch.Event)
    assert issubclass(torch.cuda.Stream, torch.Stream)

    class Named(torch.Stream):
        name = "copies"

    assert Named("cuda").name == "copies"
    assert isinstance(Named(), Named)
    assert not isinstance(torch.Stream(), Named)


def test_an_index_is_the_gpu() -> None:
    assert torch.device(0) == torch.device(device=0) == torch.device("cuda:0")
    assert torch.device(3) == torch.device("cuda", 3)  # a name, which is refused where it is used
    ours = torch.zeros(2, device=torch.device(0)).device
    assert torch.device(ours) is torch.device(device=ours) is ours
    assert umadvise.on_device(torch.zeros(2).cpu().to(torch.device(ours)))
    with routed(HOST):
        assert not umadvise.on_device(torch.zeros(2, device=torch.device("cpu")))
    assert type(torch.device(0)) is torch.device
    for wrong in ((), ("nothing",), (-1,), (1.5,), ("cpu", 0, 0)):
        with pytest.raises((TypeError, RuntimeError)):
            torch.device(*wrong)


def test_words_for_whichever_device_is_there() -> None:
    accelerator = torch.accelerator.current_accelerator()
    tensor = torch.zeros(2, device=accelerator)
    for device in ((), (accelerator,), ("cuda:0",), (tensor.device,), (torch.device(0),)):
        assert torch.get_device_module(*device) is torch.cuda
    assert torch.get_device_module("cpu") is torch.cpu
    with torch.accelerator.device_index(0), torch.cuda.device(0) as nothing:
        assert nothing is None
    assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated() > 0
    assert umadvise.on_device(nn.Linear(2, 2).to(torch.device(0)).weight)


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors_are_made_on_the_device(layout: torch.layout) -> None:
    parts = [torch.arange(3.0, device="cuda"), torch.ones(2, device="cuda")]
    for make in (torch.nested.nested_tensor, torch.nested.as_nested_tensor):
        nested = make(parts, layout=layout, device="cuda")
        assert nested.is_cuda
        assert umadvise.on_device(nested.values())
        assert nested.sin().is_cuda
        host = nested.cpu()
        assert not umadvise.on_device(host.values())
        assert torch.equal(host.values(), torch.tensor([0.0, 1, 2, 1, 1]))
