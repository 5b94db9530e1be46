"""The ctypes face against the C headers as the compiler reads them, and what happens when the core cannot be loaded."""

import ctypes
import dataclasses
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import umadvise
from umadvise import _native
from umadvise._native import abi as _abi
from umadvise._native import mirrors, prototypes
from umadvise.errors import NativeError, UmadviseError
from umadvise.records.enums import Advice, Cause, Phase, Role

ROOT = Path(__file__).parents[3]
CORE_HEADER = ROOT / "csrc" / "include" / "umadvise.h"
HOOKS_HEADER = ROOT / "umadvise" / "_hooks" / "hooks.h"
MIB = 1 << 20

STRUCTURES = {
    "um" + re.sub("([A-Z])", r"_\1", name).lower(): record
    for name, record in vars(_abi).items()
    if dataclasses.is_dataclass(record)
}
"""Every dataclass of _abi by the name that its structure has in the header: SwapOptions is um_swap_options."""
ENUMERATIONS = {
    "UM_": _abi.Status,
    "UM_COUNTING_": _abi.Counting,
    "UM_MEMORY_": _abi.Memory,
    "UM_ROLE_": Role,
    "UM_ADVICE_": Advice,
    "UM_ROUTE_": _abi.RouteState,
    "UM_PHASE_": Phase,
    "UM_CAUSE_": Cause,
    "UM_EVENT_": _abi.EventKind,
    "UM_RESIDENCY_": _abi.ResidencySubject,
    "UM_RECORDED_": _abi.RecordedKind,
    "UM_SERVICE_": _abi.Service,
    "UM_PROGRAM_": _abi.ProgramStatus,
    "UM_HOST_MAPPED_": _abi.HostMapped,
    "UM_SMALL_": _abi.Small,
}


def compiled_output(statements: list[str], directory: Path) -> list[int]:
    """What a C++ program that includes the headers prints, one number a statement."""
    source = directory / "ask.cpp"
    lines = "\n".join(f'std::printf("%lld\\n", (long long)({statement}));' for statement in statements)
    source.write_text(
        f'#include "hooks.h"\n#include <cstddef>\n#include <cstdio>\nint main() {{\n{lines}\n}}\n', encoding="utf-8"
    )
    compiler = shutil.which("c++") or "g++"
    includes = [f"-I{CORE_HEADER.parent}", f"-I{HOOKS_HEADER.parent}"]
    subprocess.run([compiler, "-std=c++17", *includes, str(source), "-o", str(directory / "ask")], check=True)
    printed = subprocess.run([str(directory / "ask")], check=True, capture_output=True, text=True).stdout
    return [int(line) for line in printed.split()]


def test_structures_have_the_headers_layout(tmp_path: Path) -> None:
    statements, expected = [], []
    for name, record in STRUCTURES.items():
        structure = mirrors.mirror(record).structure
        statements.append(f"sizeof({name})")
        expected.append(ctypes.sizeof(structure))
        for field in dataclasses.fields(record):
            descriptor: Any = getattr(structure, field.name)
            statements += [f"offsetof({name}, {field.name})", f"sizeof((({name}*)nullptr)->{field.name})"]
            expected += [descriptor.offset, descriptor.size]
    assert compiled_output(statements, tmp_path) == expected


def test_enumerations_have_the_headers_values(tmp_path: Path) -> None:
    members = [(prefix + member.name, member.value) for prefix, kind in ENUMERATIONS.items() for member in kind]
    statements = [name for name, _ in members] + ["UM_ABI_VERSION", "UM_HOOKS_ABI_VERSION", "UM_UNKNOWN"]
    expected = [value for _, value in members] + [_abi.ABI_VERSION, _abi.HOOKS_ABI_VERSION, _abi.UNKNOWN]
    assert compiled_output(statements, tmp_path) == expected


@pytest.mark.parametrize(("header", "bound"), [(CORE_HEADER, prototypes.CORE), (HOOKS_HEADER, prototypes.HOOKS)])
def test_every_declared_function_is_bound(header: Path, bound: dict[str, Any]) -> None:
    declarations = re.findall(r"UM_API [\w *]+?\b(um_\w+)\(([^)]*)\);", header.read_text(encoding="utf-8"))
    counts = {
        name: 0 if arguments.strip() in ("", "void") else len(arguments.split(",")) for name, arguments in declarations
    }
    counts.pop("um_hooks_cuda_allocate", None)  # throws C++ exceptions: for torch alone
    assert counts == {name: len(arguments) for name, (_, arguments) in bound.items()}


def test_a_failed_call_raises_with_code_and_message() -> None:
    with pytest.raises(NativeError) as raised:
        _native.Device.open_emulated(_abi.EmulatedOptions(capacity_bytes=1))
    assert raised.value.code == _abi.Status.INVALID_ARGUMENT
    assert raised.value.message


def test_names_are_interned_once() -> None:
    assert _native.intern("aten::mm") == _native.intern("aten::mm") != 0
    assert _native.string(_native.intern("größe")) == "größe"
    assert _native.intern("") == 0
    assert _native.string(0) == ""


def test_what_nobody_can_observe_is_none() -> None:
    device = _native.Device.open_emulated(_abi.EmulatedOptions(capacity_bytes=16 * MIB))
    counters = device.counters()
    device.close()
    assert counters.remote_accesses is None
    assert counters.fault_groups == 0
    assert len(counters.bytes_h2d) == len(Cause)


def test_an_allocation_tells_how_it_was_placed() -> None:
    device = _native.Device.open_emulated(_abi.EmulatedOptions(capacity_bytes=16 * MIB))
    placement = _abi.Placement(role=Role.PARAMETER, advice=Advice.READ_MOSTLY)
    address = device.allocate(MIB, placement)
    _native.label(address, Role.GRADIENT, "weight.grad")
    found = _native.allocation_at(address + 5)
    assert found is not None
    assert (found.address, found.bytes, found.advice) == (address, MIB, Advice.READ_MOSTLY)
    assert (found.role, found.name, found.seen) == (Role.GRADIENT, "weight.grad", False)
    assert device.allocations() == [found]
    assert _native.free(address)
    assert _native.allocation_at(address) is None
    assert device.allocations() == []
    device.close()


def test_bytes_survive_the_way_in_and_out() -> None:
    device = _native.Device.open_emulated(_abi.EmulatedOptions(capacity_bytes=16 * MIB))
    address = device.allocate(3 * MIB, _abi.Placement())
    sent = (ctypes.c_uint8 * (3 * MIB))(*range(7))
    received = (ctypes.c_uint8 * (3 * MIB))()
    _native.copy_from_host(address, ctypes.addressof(sent), len(sent))
    _native.prefetch(address, len(sent), to_host=True)
    _native.copy_to_host(ctypes.addressof(received), address, len(received))
    _native.free(address)
    device.close()
    assert bytes(received) == bytes(sent)


def test_an_oversized_export_is_refused() -> None:
    device = _native.Device.open_emulated(_abi.EmulatedOptions(capacity_bytes=4 * MIB))
    address = device.allocate(8 * MIB, _abi.Placement())
    with pytest.raises(NativeError) as raised:
        _native.export(address)
    _native.free(address)
    device.close()
    assert raised.value.code == _abi.Status.OUT_OF_DEVICE_MEMORY


def failed_import(library: str, code: str) -> str:
    """Runs code in a fresh interpreter with UMADVISE_LIBRARY set, and returns the message it raised."""
    script = f"try:\n    {code}\nexcept Exception as error:\n    print(type(error).__name__, error)"
    finished = subprocess.run(
        [sys.executable, "-c", script],
        env={"UMADVISE_LIBRARY": library, "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    return finished.stdout


CALL = "import umadvise._native as native; native.intern('x')"


def test_a_missing_library_names_the_place_and_the_remedy(tmp_path: Path) -> None:
    message = failed_import(str(tmp_path / "none.so"), CALL)
    assert message.startswith(UmadviseError.__name__)
    assert str(tmp_path / "none.so") in message
    assert "Reinstall" in message


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("no library")
    message = failed_import(str(tmp_path / "text.so"), CALL)
    assert message.startswith(UmadviseError.__name__)
    assert "cannot be loaded" in message


def test_a_library_of_another_abi_is_refused(tmp_path: Path) -> None:
    functions = "".join(f"int {name}(void) {{ return {_abi.ABI_VERSION + 1}; }}\n" for name in prototypes.CORE)
    (tmp_path / "other.c").write_text(functions)
    compiler = shutil.which("cc") or "gcc"
    library = tmp_path / "other.so"
    subprocess.run([compiler, "-shared", "-fPIC", str(tmp_path / "other.c"), "-o", str(library)], check=True)
    message = failed_import(str(library), CALL)
    assert f"ABI version {_abi.ABI_VERSION + 1}, expected {_abi.ABI_VERSION}" in message


def test_importing_umadvise_needs_no_library(tmp_path: Path) -> None:
    assert failed_import(str(tmp_path / "none.so"), "import umadvise; print(umadvise.__version__)").strip() == (
        umadvise.__version__
    )
