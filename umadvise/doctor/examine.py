"""Looking at everything, and saying what follows."""

import platform

from umadvise._version import __version__
from umadvise.doctor import gpu, profiling, software, trials
from umadvise.doctor.machine import Machine, check_cards, check_memory, check_system
from umadvise.doctor.records import Ability, Check, Diagnosis

PAGING, SWAPPING = "advice, prefetches and a budget", "explicit swapping"
"""Features of a device, as csrc/memory/features.h calls them."""


def examine() -> Diagnosis:
    """Looks at this machine. Compiles the extension against torch where that was not done yet; no error leaves."""
    machine = Machine()
    core = software.check_core()
    driver = gpu.check_driver(machine)
    version = driver.facts.get("driver_version")
    checks = [
        check_system(machine),
        check_memory(machine),
        software.check_python(),
        core,
        software.check_torch(version if isinstance(version, int) else None),
        software.check_compiler(),
        software.check_extension(),
        software.check_scipy(),
        check_cards(machine),
        driver,
        *gpu.check_devices(),
        profiling.check_cupti(machine),
        profiling.check_nvml(has_driver=driver.ok),
        profiling.check_witness(has_driver=driver.ok),
    ]
    by_name = {check.name: check for check in checks}
    tried = _tries(by_name)
    return Diagnosis(
        umadvise_version=__version__,
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        checks=(*checks, *tried),
        abilities=tuple(abilities(by_name | {check.name: check for check in tried})),
    )


def _tries(checks: dict[str, Check]) -> list[Check]:
    """Trials of what has all that it needs; others would only repeat a reason."""
    if checks["torch extension"].state == "missing":
        return []
    tried = []
    if checks["system"].found.endswith("x86_64") or "x86_64" in checks["system"].found:
        tried.append(trials.check_trial("emulated", trials.run("emulated")))
    if checks["driver"].ok and checks["PyTorch"].facts.get("cuda") is not None:
        tried.append(trials.check_trial("cuda", trials.run("cuda")))
    return tried


def abilities(checks: dict[str, Check]) -> list[Ability]:
    """What works, from what was found.

    Args:
        checks: everything that was looked at, by name; trials and devices are there only where they could be tried.
    """
    core = _first_missing(checks, "native core")
    recording = _first_missing(checks, "native core", "PyTorch")
    emulated = recording or _first_missing(checks, "torch extension", "trial, emulated")
    if emulated is None and "trial, emulated" not in checks:
        emulated = checks["system"].found
    on_gpu = _first_missing(checks, "driver") or recording or _without_cuda(checks["PyTorch"])
    on_gpu = on_gpu or _first_missing(checks, "torch extension", "GPU 0, unified memory", "trial, GPU")
    paging = on_gpu or _restriction(checks, "GPU 0, unified memory") or _told(checks, PAGING)
    swapping = on_gpu or _restriction(checks, "GPU 0, swapping") or _told(checks, SWAPPING)
    counting = on_gpu or _first_missing(checks, "CUPTI") or _told(checks, "unsampled")
    found = {
        "plan, simulate, compare and report": core,
        "record a model's steps without running it": recording,
        "train on the emulated device": emulated,
        "train on a GPU in unified memory": on_gpu,
        "keep a budget on a GPU, with advice and prefetches": paging,
        "swap explicitly on a GPU": swapping,
        "count page faults on a GPU": counting,
    }
    return [Ability(name, reason is None, reason) for name, reason in found.items()]


def _first_missing(checks: dict[str, Check], *names: str) -> str | None:
    for name in names:
        check = checks.get(name)
        if check is not None and check.state == "missing":
            return f"{name}: {check.found}"
    return None


def _restriction(checks: dict[str, Check], name: str) -> str | None:
    check = checks.get(name)
    return None if check is None or check.ok else f"{name}: {check.found}"


def _without_cuda(torch: Check) -> str | None:
    return f"PyTorch: {torch.found}" if torch.facts.get("cuda") is None or not torch.ok else None


def _told(checks: dict[str, Check], fact: str) -> str | None:
    """A reason that the device in the trial gave."""
    trial = checks.get("trial, GPU")
    reason = None if trial is None else trial.facts.get(fact)
    return None if reason is None else str(reason)
