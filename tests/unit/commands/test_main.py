import argparse
import subprocess
import sys
from types import SimpleNamespace

import pytest

import umadvise
from umadvise import __main__, commands
from umadvise.errors import CheckFailedError, UmadviseError, UsageError


def fake_command(result: int | Exception) -> SimpleNamespace:
    """A command module that returns or raises `result`."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--answer", type=int, default=0)

    def run(arguments: argparse.Namespace) -> int:
        if isinstance(result, Exception):
            raise result
        return result + int(arguments.answer)

    return SimpleNamespace(__doc__="Does a thing.\n\nAt length.", add_arguments=add_arguments, run=run)


@pytest.mark.parametrize(
    ("result", "exit_code", "said"),
    [
        (0, 0, ""),
        (UmadviseError("no such file"), 1, "umadvise fake: no such file\n"),
        (UsageError("8G is no size"), 2, "umadvise fake: 8G is no size\n"),
        (CheckFailedError("losses differ"), 3, "umadvise fake: losses differ\n"),
    ],
)
def test_exit_code_and_stderr(
    result: int | UmadviseError,
    exit_code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(__main__, "commands", lambda: {"fake": fake_command(result)})
    assert __main__.main(["fake"]) == exit_code
    assert capsys.readouterr() == ("", said)


def test_a_command_gets_its_own_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(__main__, "commands", lambda: {"fake": fake_command(0)})
    assert __main__.main(["fake", "--answer", "3"]) == 3


@pytest.mark.parametrize("words", [[], ["no-such-command"], ["--no-such-option"]])
def test_bad_usage_exits_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        __main__.main(words)
    assert left.value.code == 2
    assert "usage: umadvise" in capsys.readouterr().err


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        __main__.main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"umadvise {umadvise.__version__}\n"


def test_every_file_of_commands_is_a_command() -> None:
    for name, command in commands.commands().items():
        assert command.__doc__, f"{name} has no help text"
        command.add_arguments(argparse.ArgumentParser(name))
        assert callable(command.run)


def test_help_loads_neither_torch_nor_the_native_core() -> None:
    script = """
import sys
from umadvise.__main__ import parser
parser().format_help()
print(sorted({"torch", "numpy", "umadvise._native"} & set(sys.modules)))
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


@pytest.mark.parametrize(
    ("redirection", "said"),
    [
        ("| true", ""),
        (">/dev/full", "umadvise devices: cannot write the result: No space left on device\n"),
        (">&-", ""),
    ],
)
def test_results_that_nobody_takes(redirection: str, said: str) -> None:
    """A reader that has seen enough, a full disk, and no output at all."""
    command = f"{sys.executable} -m umadvise devices --json {redirection}"
    assert subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False).stderr == said


def test_without_torch_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = ModuleNotFoundError("No module named 'torch'", name="torch")
    monkeypatch.setattr(__main__, "commands", lambda: {"fake": fake_command(missing)})
    assert __main__.main(["fake"]) == 1
    assert "umadvise fake: this needs PyTorch" in capsys.readouterr().err


def test_a_missing_module_of_someone_else_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ModuleNotFoundError("No module named 'torchvision'", name="torchvision")
    monkeypatch.setattr(__main__, "commands", lambda: {"fake": fake_command(missing)})
    with pytest.raises(ModuleNotFoundError):
        __main__.main(["fake"])
