"""The ctypes face against the C headers as the compiler reads them, and what happens when the core cannot be loaded."""

import ctypes
import dataclasses
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import umadvise
from umadvise import _native
from umadvise._native import abi, header, structures
from umadvise._native.library import core_library
from umadvise.errors import NativeError, UmadviseError
from umadvise.records.counters import Counters, Event, MemoryStats, ResidencyPeak, Sampling, SwapCounters
from umadvise.records.enums import Advice, Cause, Phase, Role
from umadvise.records.plan import ActionKind
from umadvise.records.timeline import SpanKind, Track
from umadvise.records.trace import EventKind
from umadvise.records.units import part_bytes, taken_bytes

ROOT = Path(__file__).parents[3]
CORE_HEADER = ROOT / "csrc" / "include" / "umadvise.h"
HOOKS_HEADER = ROOT / "umadvise" / "_hooks" / "hooks.h"
MIB = 1 << 20
ABI_VERSION = header.core().numbers["UM_ABI_VERSION"]
CALLBACK = type(ctypes.CFUNCTYPE(None)()).__mro__[1]

RECORDS = [record for record in vars(abi).values() if dataclasses.is_dataclass(record)]
ENUMERATIONS = {
    "UM_COUNTING_": abi.Counting,
    "UM_MEMORY_": abi.Memory,
    "UM_ROLE_": Role,
    "UM_ADVICE_": Advice,
    "UM_ROUTE_": abi.RouteState,
    "UM_PHASE_": Phase,
    "UM_CAUSE_": Cause,
    "UM_RECORDED_": EventKind,
    "UM_PLAN_": ActionKind,
    "UM_TRACK_": Track,
    "UM_SPAN_": SpanKind,
    "UM_SERVICE_": abi.Service,
    "UM_PROGRAM_": abi.ProgramStatus,
    "UM_SMALL_": abi.Small,
    "UM_TIME_": abi.TimeKind,
}
SIZES = """
template <class T> long long size() { return sizeof(T); }
template <> long long size<void>() { return 0; }
template <class R, class... A> void tell(R (*)(A...)) {
  std::printf("%lld ", size<R>());
  (std::printf("%d%lld ", std::is_pointer_v<A>, size<A>()), ...);
  std::printf("\\n");
}
"""
"""Prints the size of a function's result, and of each argument, after whether it is a pointer."""


def compiled_output(statements: list[str], directory: Path) -> list[str]:
    """What a C++ program that includes the headers prints, a line a statement."""
    source = directory / "ask.cpp"
    includes = "".join(f"#include <{name}>\n" for name in ("cstddef", "cstdio", "type_traits"))
    body = "\n".join(statements)
    source.write_text(f'#include "hooks.h"\n{includes}{SIZES}int main() {{\n{body}\n}}\n', encoding="utf-8")
    compiler = shutil.which("c++") or "g++"
    folders = [f"-I{CORE_HEADER.parent}", f"-I{HOOKS_HEADER.parent}"]
    # Addresses of functions that nobody links are taken; the program calls none of them.
    options = ["-std=c++17", *folders, "-Wl,--unresolved-symbols=ignore-all"]
    subprocess.run([compiler, *options, str(source), "-o", str(directory / "ask")], check=True)
    return subprocess.run([str(directory / "ask")], check=True, capture_output=True, text=True).stdout.splitlines()


def number(expression: str) -> str:
    return f'std::printf("%lld\\n", (long long)({expression}));'


def test_structures_have_the_layout_that_a_compiler_gives_them(tmp_path: Path) -> None:
    text = CORE_HEADER.read_text(encoding="utf-8")
    names = re.findall(r"^typedef struct (\w+) {", text, re.MULTILINE)
    assert (
        len(names)
        == len(set(names))
        == text.count("typedef struct") - len(re.findall(r"typedef struct (\w+) \1;", text))
    )
    statements, expected = [], []
    for name in names:
        structure = structures.structure(name)
        statements.append(number(f"sizeof({name})"))
        expected.append(ctypes.sizeof(structure))
        for field, *_ in structure._fields_:
            descriptor: Any = getattr(structure, field)
            statements += [number(f"offsetof({name}, {field})"), number(f"sizeof((({name}*)nullptr)->{field})")]
            expected += [descriptor.offset, descriptor.size]
    assert list(map(int, compiled_output(statements, tmp_path))) == expected


def test_numbers_are_those_that_a_compiler_reads(tmp_path: Path) -> None:
    numbers = {**header.core().numbers, **header.hooks().numbers}
    assert {"UM_ABI_VERSION", "UM_HOOKS_ABI_VERSION", "UM_UNKNOWN", "UM_ROLE_COUNT", "UM_SERVICE_GUARD"} <= {*numbers}
    assert list(map(int, compiled_output(list(map(number, numbers)), tmp_path))) == list(numbers.values())
    assert numbers["UM_UNKNOWN"] == abi.UNKNOWN


def is_pointer(kind: Any) -> bool:
    return kind in (ctypes.c_void_p, ctypes.c_char_p) or issubclass(kind, CALLBACK)


@pytest.mark.parametrize(("path", "declared"), [(CORE_HEADER, header.core), (HOOKS_HEADER, header.hooks)])
def test_functions_take_what_a_compiler_gives_them(path: Path, declared: Any, tmp_path: Path) -> None:
    functions, text = declared().functions, path.read_text(encoding="utf-8")
    assert {*functions} == {*re.findall(r"^UM_API [^;]*?\b(um_\w+)\(", text, re.MULTILINE)}
    told = compiled_output([f"tell(&{name});" for name in functions], tmp_path)
    for (name, function), line in zip(functions.items(), told, strict=True):
        result, *arguments = line.split()
        assert int(result) == (0 if function.result is None else ctypes.sizeof(function.result)), name
        assert [argument[1:] for argument in arguments] == [str(ctypes.sizeof(kind)) for kind in function.arguments]
        assert [argument[0] == "1" for argument in arguments] == list(map(is_pointer, function.arguments)), name
        assert function.checked == (f"um_status {name}(" in text), name


@pytest.mark.parametrize("prefix", ENUMERATIONS)
def test_enumerations_have_the_headers_members(prefix: str) -> None:
    numbers = {
        name.removeprefix(prefix): value for name, value in header.core().numbers.items() if name.startswith(prefix)
    }
    numbers.pop("COUNT", None)
    assert {member.name: member.value for member in ENUMERATIONS[prefix]} == numbers


def test_statuses_are_the_headers() -> None:
    assert {status.value for status in abi.Status} == {*range(len(abi.Status))}
    for status in abi.Status:
        assert header.core().numbers[f"UM_{status.name}"] == status


@pytest.mark.parametrize("record", [*RECORDS, Counters, MemoryStats, SwapCounters, Event])
def test_records_have_the_headers_fields(record: type[Any]) -> None:
    name = structures.structure_name(record)
    declared = [field for field, *_ in structures.structure(name)._fields_ if field != "reserved"]
    assert {*get_type_hints(record)} == {*declared}


@pytest.mark.parametrize(
    ("record", "name", "other"), [(Sampling, "um_sampling", {"remote_maps"}), (ResidencyPeak, "um_residency", set())]
)
def test_parts_of_structures_have_their_fields(record: type[Any], name: str, other: set[str]) -> None:
    assert {*record.__struct_fields__} - other <= {field for field, *_ in structures.structure(name)._fields_}


def test_a_structure_takes_its_own_fields_and_no_others() -> None:
    concurrency = structures.make("um_concurrency", window_pages=1, run_pages=2, faults_per_service=3)
    assert (concurrency.window_pages, concurrency.run_pages, concurrency.faults_per_service) == (1, 2, 3)
    for wrong in ({"window_pages", "run_pages"}, {"window_pages", "run_pages", "faults"}):
        with pytest.raises(TypeError, match=r"um_concurrency has other fields: .*faults_per_service"):
            structures.make("um_concurrency", **dict.fromkeys(wrong, 1))


def test_a_failed_call_raises_with_code_and_message() -> None:
    with pytest.raises(NativeError) as raised:
        _native.Device.open_emulated(abi.EmulatedOptions(capacity_bytes=1))
    assert raised.value.code == abi.Status.INVALID_ARGUMENT
    assert raised.value.message


def test_names_are_interned_once() -> None:
    assert _native.intern("aten::mm") == _native.intern("aten::mm") != 0
    assert _native.string(_native.intern("größe")) == "größe"
    assert _native.intern("") == 0
    assert _native.string(0) == ""


def test_what_nobody_can_observe_is_none() -> None:
    device = _native.Device.open_emulated(abi.EmulatedOptions(capacity_bytes=16 * MIB))
    counters = device.counters()
    device.close()
    assert counters.remote_accesses is None
    assert counters.fault_groups == 0
    assert counters.bytes_h2d is not None
    assert counters.bytes_h2d.total == 0


def test_an_allocation_tells_how_it_was_placed() -> None:
    device = _native.Device.open_emulated(abi.EmulatedOptions(capacity_bytes=16 * MIB))
    placement = abi.Placement(role=Role.PARAMETER, advice=Advice.READ_MOSTLY)
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
    device = _native.Device.open_emulated(abi.EmulatedOptions(capacity_bytes=16 * MIB))
    address = device.allocate(3 * MIB, abi.Placement())
    sent = (ctypes.c_uint8 * (3 * MIB))(*range(7))
    received = (ctypes.c_uint8 * (3 * MIB))()
    core_library().um_copy_from_host(address, ctypes.addressof(sent), len(sent))
    _native.prefetch(address, len(sent), to_host=True)
    _native.copy_to_host(ctypes.addressof(received), address, len(received))
    _native.free(address)
    device.close()
    assert bytes(received) == bytes(sent)


@pytest.mark.parametrize("chunk_bytes", [1, 1 << 16, 2 * MIB, 3 * MIB, 32 * MIB])
def test_planners_know_what_the_core_takes_of_chunks(chunk_bytes: int) -> None:
    unit = part_bytes(chunk_bytes)
    edges = (0, unit, 2 * unit, chunk_bytes // 2, chunk_bytes, 3 * chunk_bytes)
    for size in sorted({max(0, edge + step) for edge in edges for step in (-1, 0, 1)}):
        assert core_library().um_chunk_share(size, chunk_bytes) == taken_bytes(size, chunk_bytes), size


def test_an_oversized_export_is_refused() -> None:
    device = _native.Device.open_emulated(abi.EmulatedOptions(capacity_bytes=4 * MIB))
    address = device.allocate(8 * MIB, abi.Placement())
    with pytest.raises(NativeError) as raised:
        _native.export(address)
    _native.free(address)
    device.close()
    assert raised.value.code == abi.Status.OUT_OF_DEVICE_MEMORY


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
    functions = "".join(f"int {name}(void) {{ return {ABI_VERSION + 1}; }}\n" for name in header.core().functions)
    (tmp_path / "other.c").write_text(functions)
    compiler = shutil.which("cc") or "gcc"
    library = tmp_path / "other.so"
    subprocess.run([compiler, "-shared", "-fPIC", str(tmp_path / "other.c"), "-o", str(library)], check=True)
    message = failed_import(str(library), CALL)
    assert f"ABI version {ABI_VERSION + 1}, expected {ABI_VERSION}" in message


def test_importing_umadvise_needs_no_library(tmp_path: Path) -> None:
    assert failed_import(str(tmp_path / "none.so"), "import umadvise; print(umadvise.__version__)").strip() == (
        umadvise.__version__
    )
