"""The NVIDIA driver, and each of its devices: what it can do, by its attributes and what NVML tells."""

import contextlib

from umadvise import _native
from umadvise._native.abi import CudaDevice
from umadvise.devices import nvml
from umadvise.devices.cuda_attributes import Attribute, pci_address, read
from umadvise.doctor.machine import Machine
from umadvise.doctor.records import Check, Fact, State
from umadvise.errors import NativeError, UmadviseError
from umadvise.records.units import format_bytes

_OLDEST = "CUDA 12.2 (535.54 or newer)"
_IDLE_GENERATION = 1

Attributes = dict[str, int | None]


def check_driver(machine: Machine) -> Check:
    """Whether the driver can be used, and what to do where it cannot."""
    module = machine.kernel_module
    facts: dict[str, Fact] = {"kernel_module": module}
    try:
        reason = _native.cuda_unavailable_reason()
    except UmadviseError:
        return Check("driver", "missing", "cannot be asked without the native core", "see the native core", facts)
    if reason is not None:
        return Check("driver", "missing", reason, _remedy(machine, reason), facts)
    device = _native.cuda_device(0)
    version = f"CUDA {device.driver_version // 1000}.{device.driver_version % 1000 // 10}"
    facts |= {"driver_version": device.driver_version, "devices": device.device_count}
    found = f"supports {version}" + (f", kernel module {module}" if module else "")
    count = "1 device" if device.device_count == 1 else f"{device.device_count} devices"
    return Check("driver", "ok", f"{found}; {count}", facts=facts)


def _remedy(machine: Machine, reason: str) -> str:
    """What helps, by where the driver stopped."""
    if "too old" in reason:
        return f"update the NVIDIA driver to {_OLDEST}"
    if "stub" in reason:
        return "take the toolkit's lib64/stubs out of LD_LIBRARY_PATH: it is for linking alone"
    if "mismatch" in reason or "differ" in reason:
        return "reboot: the driver was updated, and the kernel still runs the former one"
    if "no device" in reason or "NO_DEVICE" in reason:
        return "unset CUDA_VISIBLE_DEVICES, or give it a device that nvidia-smi lists"
    if reason.startswith("no NVIDIA driver") and machine.kernel_module is not None:
        return "start the container with its GPUs (docker run --gpus all): the host has the driver"
    if reason.startswith("no NVIDIA driver") and machine.is_wsl:
        return "install NVIDIA's driver in Windows, and none in WSL"
    if reason.startswith("no NVIDIA driver") and machine.card_count > 0:
        return f"install the NVIDIA driver, {_OLDEST}"
    if reason.startswith("no NVIDIA driver"):
        return 'nothing to do without a GPU: device="emulated" trains without one'
    if machine.kernel_module is not None and not machine.has_device_nodes:
        return "let this user open /dev/nvidiactl and /dev/nvidia* (in a container: --gpus all)"
    return "run nvidia-smi, and see what the kernel says of the driver (dmesg)"


def check_devices() -> list[Check]:
    """All checks of all devices; none where the driver cannot be used."""
    try:
        count = _native.cuda_device(0).device_count
    except UmadviseError:
        return []
    checks: list[Check] = []
    for ordinal in range(count):
        try:
            device = _native.cuda_device(ordinal)
        except NativeError as error:
            remedy = "take it out of CUDA_VISIBLE_DEVICES"
            checks.append(Check(f"GPU {ordinal}", "missing", str(error), remedy))
            continue
        values = {attribute.name.lower(): read(ordinal, attribute) for attribute in Attribute}
        title = f"GPU {ordinal}"
        checks += [
            _check_device(title, device, values),
            _check_paging(title, values),
            _check_chunks(title, values),
        ]
        checks += _check_card(title, ordinal, device)
    return checks


def _check_device(title: str, device: CudaDevice, values: Attributes) -> Check:
    """What it is."""
    major, minor = values["compute_capability_major"], values["compute_capability_minor"]
    facts: dict[str, Fact] = {"name": device.name, "total_bytes": device.total_bytes, **values}
    found = f"{device.name}, {format_bytes(device.total_bytes)}, compute capability {major}.{minor}"
    if values["integrated"] == 1:
        found += "; integrated: its memory is the host's"
        remedy = "make the batch smaller: advice and swapping move nothing where there is one memory"
        return Check(title, "limited", found, remedy, facts)
    return Check(title, "ok", found, facts=facts)


def _check_paging(title: str, values: Attributes) -> Check:
    """Managed memory, and what its driver does for it."""
    name = f"{title}, unified memory"
    if values["managed_memory"] != 1:
        found, remedy = "no managed memory (attribute 83)", 'use policy="resident", or "swap" where chunks work'
        return Check(name, "missing", found, remedy)
    if values["concurrent_managed_access"] != 1:
        found = (
            "no concurrent managed access (attribute 89): no page faults, and the driver takes neither advice nor "
            "prefetches; a budget is refused"
        )
        remedy = (
            "it needs Linux itself (no WSL, no Windows), compute capability 6.0, and a virtual GPU with UVM enabled"
        )
        return Check(name, "limited", found, remedy)
    found = "managed memory is paged, with advice and prefetches"
    if values["pageable_memory_access_uses_host_page_tables"] == 1:
        found += "; coherent: it reads host memory in place (attribute 100), so some faults cost a remote access alone"
    elif values["pageable_memory_access"] == 1:
        found += "; it pages ordinary host memory too (HMM)"
    return Check(name, "ok", found)


def _check_chunks(title: str, values: Attributes) -> Check:
    """Explicit swapping."""
    name = f"{title}, swapping"
    if values["virtual_memory_management_supported"] != 1:
        found = "no virtual memory management (attribute 102): no chunks"
        return Check(name, "missing", found, 'use policy="advise" or "window"')
    return Check(name, "ok", "chunks work; what is swapped out stays accessible, slowly")


def _check_card(title: str, ordinal: int, device: CudaDevice) -> list[Check]:
    """What only NVML tells; hardly anything without it."""
    address = pci_address(ordinal)
    with contextlib.suppress(UmadviseError), nvml.opened() as opened:
        card = None if address is None else opened.card_at(address)
        if card is not None:
            return [_check_sharing(title, device, card), _check_link(title, card), _check_free(title, card)]
    # What the name alone tells of sharing.
    return [_mig_instance(f"{title}, sharing", {})] if "MIG" in device.name else []


def _mig_instance(name: str, facts: dict[str, Fact]) -> Check:
    found = "a MIG instance: its memory and budget are the instance's, and page faults cannot be counted"
    return Check(name, "limited", found, "use the whole GPU to count page faults", facts)


def _check_sharing(title: str, device: CudaDevice, card: nvml.Card) -> Check:
    """MIG and virtual GPUs."""
    name = f"{title}, sharing"
    divided, virtual = card.in_mig_mode(), card.virtualization()
    facts: dict[str, Fact] = {"mig": divided, "virtualization": virtual}
    if virtual == "vgpu":
        found = "a virtual GPU: unified memory and counters need its host's consent"
        remedy = "ask the host's administrator for a profile with UVM, and with profiling for counters of page faults"
        return Check(name, "limited", found, remedy, facts)
    if divided or "MIG" in device.name:
        return _mig_instance(name, facts)
    found = "the whole GPU" + (f" ({virtual})" if virtual else "")
    return Check(name, "ok", found, facts=facts)


def _check_link(title: str, card: nvml.Card) -> Check:
    """The link that everything moves over, and what goes over it now."""
    name, facts = f"{title}, link", {**card.link(), **card.throughput()}
    generation, width, max_generation, max_width, h2d_bytes_per_s, d2h_bytes_per_s = facts.values()
    if max_generation is None or max_width is None:
        return Check(name, "ok", "NVML tells of no PCIe link", facts=facts)
    found = f"PCIe {generation} x{width} now, {max_generation} x{max_width} at most"
    if h2d_bytes_per_s is not None and d2h_bytes_per_s is not None:
        found += f"; {h2d_bytes_per_s / 1e6:.0f} MB/s to the device, {d2h_bytes_per_s / 1e6:.0f} to the host"
    if width is not None and width < max_width:
        slower = max_width // width
        remedy = f"put the card into a slot with {max_width} lanes: moving takes {slower} times as long as it could"
        return Check(name, "limited", found, remedy, facts)
    if generation is not None and _IDLE_GENERATION < generation < max_generation:
        remedy = "look again under load; a riser, or the board's settings, may hold the link back"
        return Check(name, "limited", found, remedy, facts)
    return Check(name, "ok", found, facts=facts)


def _check_free(title: str, card: nvml.Card) -> Check:
    """Who else is there."""
    name, memory, processes = f"{title}, free memory", card.memory(), card.processes() or []
    if memory is None:
        return Check(name, "ok", "NVML does not tell")
    facts: dict[str, Fact] = {"free_bytes": memory.free_bytes, "total_bytes": memory.total_bytes}
    found = f"{format_bytes(memory.free_bytes)} of {format_bytes(memory.total_bytes)}"
    state: State = "ok"
    remedy = None
    if processes:
        holders = ", ".join(f"process {each.process_id}: {format_bytes(each.used_bytes)}" for each in processes[:4])
        found += f"; {holders}"
        state, remedy = "limited", 'share it with budget="auto", which leaves the others what they have'
    return Check(name, state, found, remedy, facts=facts)
