"""What a block costs that comes by a fault while another must leave: from a measurement that no judged row has seen.

A V100 on PCIe 3.0 reads 32 GiB of managed memory on 16 GiB, again and again, at 2.17 GiB/s: 900 us a block of 2 MiB,
eviction and fetch included (LutzCle/unified-memory-debugging README; `PreferredLocation` and the rest unset). The
simulator's default costs are replayed on the same program; what they lack is charged to `migrate_ns`, the host's part
of a service that brings pages from it, of which the sources say least.
"""

from replay.changed import with_values
from umadvise.devices.catalogue import load_device
from umadvise.recording.builder import TraceBuilder
from umadvise.records.device import DeviceProfile
from umadvise.records.enums import Role
from umadvise.records.trace import Access, Trace
from umadvise.simulator.unified import simulate_unified

MEASURED_ON = "v100-pcie-16gb"
MEASURED_BYTES_PER_S = 2.17 * (1 << 30)
_BLOCK_BYTES = 2 << 20
_READ_BYTES, _OP_BYTES = 32 << 30, 64 << 20


def charged(device: DeviceProfile) -> DeviceProfile:
    """The device with the measured cost of a block; it must have the link of the measurement.

    Raises:
        ValueError: it has another one.
    """
    measured_on = load_device(MEASURED_ON)
    if device.link.kind != measured_on.link.kind:
        raise ValueError(f"{device.name} has a link of kind {device.link.kind}: expected {measured_on.link.kind}")
    missing_ns = _BLOCK_BYTES / MEASURED_BYTES_PER_S * 1e9 - block_ns(measured_on)
    services = _services_per_block(measured_on)
    migrate_ns = max(device.unified_memory.costs.migrate_ns.value + missing_ns / services, 0)
    return with_values(device, {"unified_memory": {"costs": {"migrate_ns": round(migrate_ns)}}})


def block_ns(device: DeviceProfile) -> float:
    """What the simulator charges for each block of that program once the memory is full."""
    simulation = simulate_unified(_reading(), device)
    return simulation.mean_step_ns / (_READ_BYTES // _BLOCK_BYTES)


def _services_per_block(device: DeviceProfile) -> float:
    gpu = simulate_unified(_reading(), device).steady[-1].gpu
    return gpu.fault_groups / (_READ_BYTES // _BLOCK_BYTES)


def _reading() -> Trace:
    builder = TraceBuilder()
    data = builder.allocate(_READ_BYTES, Role.INTERMEDIATE, "data")
    for offset in range(0, _READ_BYTES, _OP_BYTES):
        builder.begin_op("read", duration_ns=0)
        builder.access(data, Access.READ, offset, _OP_BYTES)
        builder.end_op()
    return builder.finish(target="cuda", source="synthetic", workload="cyclic reading")
