"""Compiling on first use: with a compiler that only writes down how it was called, and with none at all."""

import fcntl
import os
import stat
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from umadvise._hooks import loader
from umadvise.errors import HooksUnavailableError

UNIT_COUNT = min(os.cpu_count() or 1, 2)


class FakeCompiler:
    """A script in $CXX that logs its arguments and writes its output file."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = directory / "calls"
        self.path = directory / "fake-c++"
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
        self.behave('for last; do :; done; echo built > "$last"')

    def behave(self, commands: str) -> None:
        self.path.write_text(f'#!/bin/sh\necho "$@" >> {self.log}\n{commands}\n')
        self.path.chmod(0o755)
        self._monkeypatch.setenv("CXX", str(self.path))

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCompiler:
    return FakeCompiler(tmp_path, monkeypatch)


def test_it_compiles_once_and_says_so(
    compiler: FakeCompiler, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    first = loader.compiled_library()
    assert caplog.messages == [f"compiling the torch {torch.__version__} extension (once, some seconds)"]
    second = loader.compiled_library()
    assert len(caplog.messages) == 1
    captured = capfd.readouterr()
    assert (captured.err, captured.out) == ("", "")
    assert first == second
    assert first.read_text() == "built\n"
    assert len(compiler.calls()) == UNIT_COUNT + 1  # each unit, and one link


@pytest.mark.usefixtures("compiler")
def test_nothing_half_built_is_left_beside_the_library() -> None:
    directory = loader.compiled_library().parent
    assert sorted(path.name for path in directory.iterdir()) == ["libumadvise_hooks.so", "lock"]


def test_what_a_killed_compilation_has_left_goes(compiler: FakeCompiler) -> None:
    """The lock of a process that was killed is free, and what it had compiled is in a directory beside the lock."""
    compiler.behave("kill -9 $$")
    with pytest.raises(HooksUnavailableError):
        loader.compiled_library()
    (lock,) = (compiler.path.parent / "cache").rglob("lock")
    Path(tempfile.mkdtemp(dir=lock.parent), "half.o").touch()
    compiler.behave('for last; do :; done; echo built > "$last"')
    assert sorted(path.name for path in loader.compiled_library().parent.iterdir()) == ["libumadvise_hooks.so", "lock"]


def test_it_says_that_it_waits_for_another_compilation(
    compiler: FakeCompiler, caplog: pytest.LogCaptureFixture
) -> None:
    first = loader.compiled_library()
    first.unlink()
    caplog.clear()
    with (first.parent / "lock").open("w") as held, ThreadPoolExecutor(1) as pool:
        fcntl.flock(held, fcntl.LOCK_EX)
        second = pool.submit(loader.compiled_library)
        while not caplog.messages:
            assert not second.done()
        assert caplog.messages == [f"waiting for another process that compiles the torch extension in {first.parent}"]
        assert len(compiler.calls()) == UNIT_COUNT + 1
        fcntl.flock(held, fcntl.LOCK_UN)
        assert second.result(60) == first


def test_it_is_built_for_this_torch(compiler: FakeCompiler) -> None:
    library = loader.compiled_library()
    torch_directory = Path(torch.__file__).parent
    compilations = [call.split() for call in compiler.calls() if " -c " in call]
    links = [call.split() for call in compiler.calls() if "-shared" in call]
    assert library.parent.name.startswith(f"{torch.__version__}-cxx11abi{int(torch.compiled_with_cxx11_abi())}-")
    for arguments in compilations:
        assert f"-isystem{torch_directory}/include" in arguments
        assert f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}" in arguments
    assert [f"-L{torch_directory}/lib" in arguments for arguments in links] == [True]


def test_concurrent_first_uses_compile_once(compiler: FakeCompiler) -> None:
    together = threading.Barrier(4)

    def use() -> Path:
        together.wait()
        return loader.compiled_library()

    with ThreadPoolExecutor(4) as pool:
        libraries = [future.result() for future in [pool.submit(use) for _ in range(4)]]
    assert len(set(libraries)) == 1
    assert len(compiler.calls()) == UNIT_COUNT + 1


def test_another_compiler_or_other_flags_build_again(compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    first = loader.compiled_library()
    monkeypatch.setenv("CXX", f"{compiler.path} -march=native")
    second = loader.compiled_library()
    assert first != second
    assert all("-march=native" in call for call in compiler.calls()[UNIT_COUNT + 1 :])


def test_no_compiler_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(HooksUnavailableError, match=r"'c\+\+' was not found.*set CXX"):
        loader.compiled_library()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(HooksUnavailableError, match="'no-such-compiler' was not found"):
        loader.compiled_library()


@pytest.mark.usefixtures("compiler")
def test_what_was_compiled_serves_where_the_compiler_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    built = loader.compiled_library()
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert loader.compiled_library() == built
    monkeypatch.setattr(loader, "_OPTIONS", ("-O3",))  # as other sources, or another torch
    with pytest.raises(HooksUnavailableError, match="'no-such-compiler' was not found"):
        loader.compiled_library()


def test_a_compile_error_shows_the_compilers_last_lines(compiler: FakeCompiler) -> None:
    compiler.behave("seq 1 100 >&2; echo 'fatal: no such standard' >&2; exit 1")
    with pytest.raises(HooksUnavailableError) as raised:
        loader.compiled_library()
    message = str(raised.value)
    assert "ended with status 1" in message
    assert "\n100\nfatal: no such standard\n" in message
    assert "\n50\n" not in message
    compiler.behave('for last; do :; done; echo built > "$last"')
    assert loader.compiled_library().read_text() == "built\n"  # the failure left nothing behind


def test_a_compiler_that_does_not_run(compiler: FakeCompiler) -> None:
    compiler.path.write_text("#!/no/such/interpreter\n")
    with pytest.raises(HooksUnavailableError, match="does not run"):
        loader.compiled_library()


def a_file(cache: Path) -> None:
    cache.write_text("not a directory")


def a_loop(cache: Path) -> None:
    cache.symlink_to(cache)


def below_a_file(cache: Path) -> None:
    cache.mkdir()
    (cache / "umadvise").write_text("not a directory")


def open_to_all(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o777)


def open_to_the_group(cache: Path) -> None:
    (cache / "umadvise" / "hooks").mkdir(parents=True)
    (cache / "umadvise").chmod(0o775)


UNUSABLE = (a_file, a_loop, below_a_file, open_to_all, open_to_the_group)


@pytest.mark.parametrize("spoil", UNUSABLE)
def test_where_nothing_can_be_kept_each_process_compiles(
    spoil: Callable[[Path], None], compiler: FakeCompiler, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spoil(tmp_path / "cache")
    library = loader.compiled_library()
    assert library.read_text() == "built\n"
    assert not library.is_relative_to(tmp_path)
    assert stat.S_IMODE(library.parent.stat().st_mode) == 0o700
    assert "each process compiles it again" in caplog.text
    assert len(compiler.calls()) == UNIT_COUNT + 1


@pytest.mark.parametrize(("variables"), [{}, {"XDG_CACHE_HOME": "x" * 300}, {"XDG_CACHE_HOME": "/" + "x" * 300}])
def test_a_user_without_a_home(
    variables: dict[str, str], compiler: FakeCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(_: int) -> NoReturn:
        raise KeyError("no such user")

    monkeypatch.chdir(tmp_path)
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    before = set(tmp_path.iterdir())
    assert loader.compiled_library().read_text() == "built\n"
    assert set(tmp_path.iterdir()) - before == {compiler.log}  # a relative path names no cache


def writable_file(library: Path) -> None:
    library.chmod(0o664)


def writable_directory(library: Path) -> None:
    library.parent.chmod(0o777)


def writable_above(library: Path) -> None:
    library.parents[1].chmod(0o775)


def writable_cache(library: Path) -> None:
    library.parents[3].chmod(0o1777)


def of_another_user(library: Path) -> None:
    os.chown(library, 12345, -1)


def in_a_folder_of_another_user(library: Path) -> None:
    os.chown(library.parent, 12345, -1)


PLANTED = [writable_file, writable_directory, writable_above, writable_cache]
if os.getuid() == 0:
    PLANTED += [of_another_user, in_a_folder_of_another_user]


@pytest.mark.parametrize("plant", PLANTED)
@pytest.mark.parametrize("compiles", [True, False])
def test_code_that_others_may_have_written_is_not_loaded(
    plant: Callable[[Path], None],
    compiles: bool,
    compiler: FakeCompiler,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = loader.compiled_library()
    kept.write_text("planted\n")
    plant(kept)
    if not compiles:
        monkeypatch.setenv("CXX", "no-such-compiler")
        with pytest.raises(HooksUnavailableError, match="'no-such-compiler' was not found"):
            loader.compiled_library()
        return
    assert loader.compiled_library().read_text() == "built\n"
    assert "code is not loaded from where others may have written it" in caplog.text
    assert len(compiler.calls()) == 2 * (UNIT_COUNT + 1)


@pytest.mark.usefixtures("compiler")
def test_what_is_kept_can_be_loaded_again_whatever_the_umask() -> None:
    before = os.umask(0o002)
    try:
        assert loader.compiled_library() == loader.compiled_library()
    finally:
        os.umask(before)


def test_a_library_that_is_named_is_taken_as_it_is(
    compiler: FakeCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMADVISE_HOOKS_LIBRARY", str(tmp_path / "hooks.so"))
    with pytest.raises(HooksUnavailableError, match=r"names .*hooks\.so, which is no file"):
        loader.compiled_library()
    (tmp_path / "hooks.so").write_text("made elsewhere")
    assert loader.compiled_library() == tmp_path / "hooks.so"
    assert compiler.calls() == []


def test_what_one_machine_compiled_is_found_on_another(
    compiler: FakeCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = loader.compiled_library()
    here = loader.installed_torch()
    elsewhere = loader.Torch(here.version, tmp_path / "other" / "torch", here.cxx11_abi)
    assert loader.build_name(elsewhere) == loader.build_name(here)
    other = tmp_path / "bin" / "fake-c++"  # the same compiler, installed in another folder
    other.parent.mkdir()
    other.symlink_to(compiler.path)
    monkeypatch.setenv("CXX", str(other))
    assert loader.compiled_library(elsewhere) == built
    newer = loader.Torch("99.0", here.directory, here.cxx11_abi)
    assert loader.build_name(newer) != loader.build_name(here)
    wrong = tmp_path / "changed"
    wrong.mkdir()
    (wrong / "hooks.h").write_text("other sources")
    monkeypatch.setattr(loader, "_SOURCE_DIRECTORY", wrong)
    monkeypatch.setattr(loader, "core_headers", lambda: Path("csrc/include").resolve())
    assert loader.build_name(here) != built.parent.name.rpartition("-")[0]


def test_each_source_is_in_one_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = sorted(Path(loader.__file__).parent.glob("*.cpp"))
    for cores in (1, 3, 64, None):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        units = loader._units(tmp_path)
        assert len(units) == min(cores or 1, 2)
        parts = [[Path(line.split('"')[1]) for line in unit.read_text().splitlines()] for unit in units]
        assert sorted(source for part in parts for source in part) == sources
        bytes_ = [sum(source.stat().st_size for source in part) for part in parts]
        assert max(bytes_) < 1.5 * min(bytes_)
