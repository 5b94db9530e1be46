"""Whose discards are used: those of a driver that was tried here, in that version alone."""

from pathlib import Path

import pytest

from umadvise.devices import discard_proof


@pytest.fixture(autouse=True)
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that tells the driver's version."""
    file = tmp_path / "version"
    file.write_text("580.95.05\n")
    monkeypatch.setattr(discard_proof, "_VERSION_FILE", file)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return file


def test_nothing_is_proved_before_it_was_tried() -> None:
    assert not discard_proof.is_proved()


def test_a_proof_holds_for_its_driver_alone(driver: Path) -> None:
    assert discard_proof.keep(True)
    assert discard_proof.is_proved()
    driver.write_text("595.10\n")
    assert not discard_proof.is_proved()
    driver.write_text("580.95.05\n")
    assert discard_proof.is_proved()


def test_a_later_trial_takes_it_back() -> None:
    discard_proof.keep(True)
    assert discard_proof.keep(False)
    assert not discard_proof.is_proved()


@pytest.mark.parametrize("version", [None, "", "../580"])
def test_a_driver_without_a_version_is_never_trusted(driver: Path, version: str | None) -> None:
    if version is None:
        driver.unlink()
    else:
        driver.write_text(version)
    assert not discard_proof.keep(True)
    assert not discard_proof.is_proved()
