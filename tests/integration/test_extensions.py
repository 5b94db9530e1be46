"""What reaches memory from C: functions of pybind11, DLPack's functions, and ops that go on without memory."""

import ctypes
import logging
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.cpp_extension import load

import umadvise
from umadvise.errors import UmadviseError
from umadvise.training.session import Session

SIZE = 600_000  # above half a chunk, so that it can be swapped
SOURCE = """
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/utils/pybind.h>

at::Tensor axpy(const at::Tensor& x, const at::Tensor& y, double factor) {
  at::Tensor sum = at::empty_like(x);
  const float *const from = x.data_ptr<float>(), *const also = y.data_ptr<float>();
  float* const to = sum.data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = from[i] + static_cast<float>(factor) * also[i];
  return sum;
}

void double_all(const std::vector<at::Tensor>& all) {
  for (const at::Tensor& each : all)
    for (int64_t i = 0; i < each.numel(); ++i) each.data_ptr<float>()[i] *= 2;
}

struct Adder {
  double by;
  void add(const at::Tensor& x) const {
    for (int64_t i = 0; i < x.numel(); ++i) x.data_ptr<float>()[i] += static_cast<float>(by);
  }
};

struct Model {
  virtual ~Model() = default;
  virtual at::Tensor forward(const at::Tensor& x) { return at::add(x, 1); }
};

struct PythonsModel : Model {
  using Model::Model;
  at::Tensor forward(const at::Tensor& x) override { PYBIND11_OVERRIDE(at::Tensor, Model, forward, x); }
};

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  py::class_<Model, PythonsModel>(m, "Model").def(py::init<>()).def("forward", &Model::forward);
  m.def("run", [](Model& model, const at::Tensor& x) { return model.forward(x); });
  m.def("call", [](const py::function& function, const at::Tensor& x) { return function(x).cast<at::Tensor>(); });
  m.def("axpy", &axpy);
  m.def("count", [](int number) { return number + 1; });
  m.def("shifted", [](const at::Tensor& x, int count) {
    std::vector<at::Tensor> all;
    for (int i = 0; i < count; ++i) all.push_back(at::add(x, i));
    return all;
  });
  m.def_submodule("inner").def("double_all", &double_all);
  py::class_<Adder>(m, "Adder").def(py::init<double>()).def("add", &Adder::add);
  m.attr("Alias") = m.attr("Adder");
  m.attr("Adder").attr("Other") = m.attr("Model");
  m.attr("Model").attr("Other") = m.attr("Adder");
}
"""


@pytest.fixture(scope="module")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("extension")
    source = Path(folder, "toy.cpp")
    source.write_text(SOURCE)
    return load("umadvise_toy", [str(source)], extra_cflags=["-O1"], build_directory=str(folder))


@pytest.fixture
def swapping() -> Iterator[Session]:
    with umadvise.session(nn.Linear(2, 2), device="emulated", capacity="24MiB", policy="swap") as running:
        yield running


def test_what_they_read_and_write_is_announced(extension: Any, swapping: Session) -> None:
    tensors = [torch.full((SIZE,), float(i)) for i in range(9)]  # nearly all of the device
    for each in tensors:
        each.add_(0)
    sums = [extension.axpy(one, other, 0.5) for one, other in pairwise(tensors)]
    extension.inner.double_all(tensors[:3])
    extension.Adder(3.0).add(tensors[8])
    for each in (*tensors, *sums):
        each.add_(0)
    assert [float(each[-1]) for each in tensors] == [0, 2, 4, 3, 4, 5, 6, 7, 11]
    assert [float(each[0]) for each in sums] == [i + 0.5 * (i + 1) for i in range(8)]
    counted = swapping.swap_counters()
    assert counted.swap_outs > 9
    assert counted.silent_writes == 0


def test_an_extension_knows_nothing_of_it_afterwards(extension: Any) -> None:
    before = extension.axpy
    umadvise.patch("emulated")
    try:
        assert extension.axpy is not before
        assert extension.axpy.__doc__ == before.__doc__
        assert type(extension.count) is type(before)  # is given no tensor
        y = torch.ones(3)
        assert float(extension.axpy(torch.ones(3), y, 2.0).sum()) == 9
        with pytest.raises(TypeError, match="incompatible function arguments"):
            extension.axpy(y)
        assert float(torch.ones(3).sum()) == 3
    finally:
        umadvise.unpatch()
    assert extension.axpy is before


def test_classes_that_python_derives_from(extension: Any, swapping: Session) -> None:
    class Ten(extension.Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 10

    class Same(extension.Model):
        pass

    assert float(extension.run(Ten(), torch.ones(3)).sum()) == 60
    assert float(extension.run(Same(), torch.ones(3)).sum()) == 6
    assert swapping.swap_counters().silent_writes == 0


def test_what_runs_inside_is_seen(extension: Any, swapping: Session) -> None:
    tensors = [torch.full((SIZE,), float(i)) for i in range(9)]
    push_out = [torch.zeros(SIZE) for _ in range(8)]
    for each in push_out:
        each.add_(1)
    before = swapping.swap_counters().on_demand_swap_ins
    assert float(extension.call(lambda x: x + tensors[2], tensors[1]).sum()) == 3 * SIZE
    assert swapping.swap_counters().on_demand_swap_ins >= before + 2
    with pytest.raises(KeyError, match="nothing"):
        extension.call(lambda _x: {}["nothing"], tensors[3])
    extension.inner.double_all(each for each in tensors[:4])  # is gone through once
    assert [float(each[0]) for each in tensors] == [0, 2, 4, 6, 4, 5, 6, 7, 8]
    shifted = extension.shifted(tensors[0], 14)  # more than the device has
    assert [float(each[5]) for each in shifted] == list(range(14))
    kept = [torch.zeros(SIZE) for _ in range(8)]  # nothing is held any more
    assert float(sum(each.sum() for each in kept)) == 0


def test_it_trains_as_plain_torch_does(extension: Any) -> None:
    class Axpy(torch.autograd.Function):
        @staticmethod
        def forward(_context: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return extension.axpy(x, y, 0.5)

        @staticmethod
        def backward(_context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            (gradient,) = gradients
            return gradient, extension.axpy(torch.zeros_like(gradient), gradient.contiguous(), 0.5)

    def train(**session: Any) -> list[float]:
        torch.manual_seed(0)
        layers = nn.ModuleList(nn.Linear(600, 600) for _ in range(6))
        optimizer = torch.optim.Adam(layers.parameters(), 1e-3)
        losses = []

        def step() -> None:
            hidden = torch.randn(200, 600)
            for layer in layers:
                hidden = Axpy.apply(hidden, layer(hidden).tanh())
            loss = hidden.square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())

        if not session:
            for _ in range(6):
                step()
            return losses
        with umadvise.session(layers, optimizer, device="emulated", **session) as running:
            for _ in range(6):
                step()
            assert running.swap_counters().silent_writes == 0
        return losses

    plain = train()
    assert train(capacity="24MiB", policy="swap") == plain


@pytest.mark.usefixtures("swapping")
def test_compiled_code_breaks_there(extension: Any) -> None:
    compiled = torch.compile(lambda x: extension.axpy(x + 1, x, 1.0) * 2, backend="eager")
    assert torch.equal(compiled(torch.ones(5)), torch.full((5,), 6.0))


def test_what_is_compiled_ahead_of_time_is_an_op() -> None:
    loader = torch._C._aoti.AOTIModelPackageLoader
    before = loader.boxed_run
    umadvise.patch("emulated")
    try:
        assert loader.boxed_run is not before
    finally:
        umadvise.unpatch()
    assert loader.boxed_run is before


@pytest.mark.long  # compiling takes half a minute
def test_a_model_that_was_compiled_ahead_of_time(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(800, 800), nn.ReLU())
    program = torch.export.export(model, (torch.randn(750, 800),))
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    compiled = torch._inductor.aoti_load_package(package)
    inputs = [torch.randn(750, 800) for _ in range(8)]
    expected = [compiled(each) for each in inputs]
    with umadvise.session(nn.Linear(2, 2), device="emulated", capacity="24MiB", policy="swap") as running:
        tensors = [each.clone() for each in inputs]
        found = [compiled(each) for each in tensors]
        assert running.swap_counters().on_demand_swap_ins > 0  # by ops that were given them
        assert all(torch.equal(one, other.cpu()) for one, other in zip(expected, found, strict=True))


EXCHANGE = "__dlpack_c_exchange_api__"
needs_exchange = pytest.mark.skipif(not hasattr(torch.Tensor, EXCHANGE), reason="this torch has no table for C")


def address_through_c(tensor: torch.Tensor) -> int:
    """As a library asks that takes tensors without Python: DLPackExchangeAPI.dltensor_from_py_object_no_sync."""
    table = ctypes.pythonapi.PyCapsule_GetPointer
    table.restype, table.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    functions = (ctypes.c_void_p * 7).from_address(table(getattr(torch.Tensor, EXCHANGE), b"dlpack_exchange_api") or 0)
    function = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(functions[5] or 0)
    seen = (ctypes.c_uint64 * 16)()  # a DLTensor begins with its address
    assert function(tensor, ctypes.addressof(seen)) == 0
    return seen[0]


@needs_exchange
def test_an_address_that_c_has_taken_stays(swapping: Session) -> None:
    tensor = torch.full((SIZE,), 3.0)
    tensor.add_(0)
    address = address_through_c(tensor)
    others = [torch.full((SIZE,), float(i)) for i in range(14)]
    for each in others:
        each.add_(1)
    (ctypes.c_float * SIZE).from_address(address)[7] = 10.0
    for each in others:
        each.add_(1)
    assert float(tensor.sum()) == 3 * SIZE + 7
    assert swapping.swap_counters().swap_outs > 0


@needs_exchange
@pytest.mark.usefixtures("swapping")
def test_an_address_that_c_asks_for_is_refused_where_nothing_may_leave() -> None:
    tensors = [torch.ones(SIZE) for _ in range(6)]  # with what stays, more than the device has
    with umadvise.held(*tensors[:5]), pytest.raises(RuntimeError, match="cannot leave"):
        address_through_c(tensors[5])


@needs_exchange
def test_a_table_that_cannot_be_written_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("umadvise.torch_seam.doors._is_writable", lambda _address: False)
    before = getattr(torch.Tensor, EXCHANGE)
    umadvise.patch("emulated")
    try:
        assert not hasattr(torch.Tensor, EXCHANGE)
    finally:
        umadvise.unpatch()
    assert getattr(torch.Tensor, EXCHANGE) is before


def test_an_op_that_goes_on_without_memory_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    @torch.library.custom_op("umadvise_toys_fallback::convolution", mutates_args=())
    def convolution(x: torch.Tensor) -> torch.Tensor:
        try:
            return x + torch.zeros(50_000_000)[0]
        except torch.OutOfMemoryError:
            return x.clone()

    caplog.set_level(logging.WARNING, "umadvise")
    with umadvise.session(nn.Linear(2, 2), device="emulated", capacity="24MiB", policy="swap"):
        assert float(convolution(torch.ones(4)).sum()) == 4
        with pytest.raises((torch.OutOfMemoryError, UmadviseError)):
            torch.zeros(50_000_000).add_(1)
    assert "1 ops could not allocate a workspace" in caplog.text
    assert "umadvise_toys_fallback::convolution, 190.73 MiB" in caplog.text
