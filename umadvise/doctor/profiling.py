"""Who can watch: CUPTI for page faults, NVML for the card, cuda-python as a second opinion."""

from umadvise import _native
from umadvise.devices import nvml
from umadvise.devices.cuda_attributes import Attribute, read
from umadvise.doctor import witness
from umadvise.doctor.machine import Machine
from umadvise.doctor.records import Check, Fact
from umadvise.errors import UmadviseError

_NO_FAULTS = "counters of page faults are unknown on a GPU"


def check_cupti(machine: Machine) -> Check:
    """The libcupti that counters of page faults on a GPU come from."""
    facts: dict[str, Fact] = {
        "profiling_needs_admin": machine.profiling_needs_admin,
        "fault_counters_node": machine.has_fault_counters_node,
    }
    try:
        library = _native.cupti_library()
    except UmadviseError as error:
        found, _, remedy = str(error).partition(": install ")
        remedy = f"install {remedy}" if remedy else "install the package nvidia-cuda-cupti of torch's CUDA version"
        found = f"{found}; {_NO_FAULTS} without it"
        return Check("CUPTI", "missing", found, remedy, facts)
    facts |= {"version": library.version}
    found = f"{library.path}, API {library.version}"
    if machine.has_device_nodes and not machine.has_fault_counters_node:
        found += f"; /dev/nvidia-uvm-tools is missing or closed to this user, so {_NO_FAULTS}"
        remedy = "give this machine or container the device /dev/nvidia-uvm-tools (nvidia-modprobe -u -c 0 makes it)"
        return Check("CUPTI", "limited", found, remedy, facts)
    if machine.profiling_needs_admin:
        found += "; this machine's driver keeps performance counters from ordinary users"
        remedy = (
            "if steps are not sampled for lack of privileges, let an administrator set the kernel module option "
            "NVreg_RestrictProfilingToAdminUsers=0"
        )
        return Check("CUPTI", "limited", found, remedy, facts)
    return Check("CUPTI", "ok", found, facts=facts)


def check_nvml(*, has_driver: bool) -> Check:
    """nvidia-ml-py."""
    purpose = 'free memory and link of a shared card, for budget="auto"'
    try:
        with nvml.opened() as opened:
            return Check("NVML", "ok", f"driver {opened.driver_version()}: {purpose}")
    except UmadviseError as error:
        remedy = "pip install nvidia-ml-py" if "not installed" in str(error) else "see the driver"
        if not has_driver:
            remedy = "nothing to do without a GPU"
        return Check("NVML", "limited", f"{error}; it tells {purpose}", remedy)


def check_witness(*, has_driver: bool) -> Check:
    """cuda-python: whether it says the same as our core does of each device's attributes."""
    try:
        if not has_driver:
            witness.driver()
        differing = _differing() if has_driver else []
    except UmadviseError as error:
        absent = isinstance(error, witness.AbsentError)
        remedy = "pip install cuda-bindings" if absent and has_driver else "nothing to do: it is optional"
        return Check("cuda-python", "limited", str(error), remedy)
    if differing:
        found = f"it contradicts umadvise: {'; '.join(differing)}"
        return Check("cuda-python", "limited", found, "please report this, with umadvise doctor --json")
    return Check("cuda-python", "ok", "says the same of each device's attributes as umadvise does")


def _differing() -> list[str]:
    differing = []
    for ordinal in range(_native.cuda_device(0).device_count):
        for number, theirs in witness.attributes(ordinal, Attribute).items():
            ours = read(ordinal, Attribute(number))
            if ours != theirs:
                differing.append(f"attribute {number} of GPU {ordinal} is {ours} here and {theirs} there")
    return differing
