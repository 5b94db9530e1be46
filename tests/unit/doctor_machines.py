"""Machines made of files, for the tests of `umadvise doctor`."""

from pathlib import Path

from umadvise.doctor.machine import Machine

OPEN_MODULE = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.45.04  Release Build  (dvs-builder)\nGCC"


def make_machine(root: Path, files: dict[str, str] | None = None, **names: str) -> Machine:
    """A machine whose kernel shows these files."""
    for path, text in (files or {}).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return Machine(root=root, **{"system": "Linux", "release": "6.8", "architecture": "x86_64", **names})


def card(slot: str, vendor: str = "0x10de", kind: str = "0x030200") -> dict[str, str]:
    """What the kernel shows of a PCI device; NVIDIA's GPUs by default."""
    return {f"sys/bus/pci/devices/{slot}/{name}": f"{text}\n" for name, text in (("vendor", vendor), ("class", kind))}
