"""A catalogue device's link and driver as the native core takes them."""

from umadvise._native.structures import Structure, make
from umadvise.records.device import DeviceProfile
from umadvise.records.units import BLOCK_BYTES


def native_link(device: DeviceProfile) -> Structure:
    """um_link; where nobody measured both directions at once, they do not disturb each other."""
    ways = (device.link.h2d, device.link.d2h)
    return make(
        "um_link",
        fixed_ns=tuple(way.fixed_ns.value for way in ways),
        bytes_per_s=tuple(way.bytes_per_s.value for way in ways),
        both_bytes_per_s=tuple(way.both_bytes_per_s.value or way.bytes_per_s.value for way in ways),
        engines=tuple(way.engines.value for way in ways),
    )


def driver_costs(device: DeviceProfile) -> Structure:
    """um_driver_costs: for whole blocks of 2 MiB, where the driver works in several services and many transfers each.

    One service of a block stands for `services_per_block` of them, each with a batch of its own, and the block's one
    copy for `records_per_block`, whose fixed costs beyond the first are part of `migrate_ns`.
    """
    costs = device.unified_memory.costs
    services = costs.services_per_block.value
    zero_bytes_per_s = (device.memory_bytes_per_s or float("inf")) * costs.zero_share.value
    entries = costs.faults_per_service.value * costs.entry_ns.value
    records = costs.records_per_block.value - 1
    return make(
        "um_driver_costs",
        fault_ns=round(services * (costs.batch_ns.value + costs.block_ns.value + entries)),
        migrate_ns=round(services * costs.migrate_ns.value + records * device.link.h2d.fixed_ns.value),
        first_map_ns=costs.first_map_ns.value,
        zero_ns=round(BLOCK_BYTES / zero_bytes_per_s * 1e9),
        evict_ns=costs.evict_ns.value,
        prefetch_call_ns=costs.prefetch_call_ns.value,
        prefetch_block_ns=costs.prefetch_block_ns.value,
        advise_call_ns=costs.advise_call_ns.value,
        read_mostly_block_ns=costs.read_mostly_block_ns.value,
        prefetch_bytes_per_s=costs.prefetch_bytes_per_s.value or 0.0,
        present_block_ns=costs.block_ns.value,
    )


def page_costs(device: DeviceProfile) -> Structure:
    """um_pages_costs: the driver's costs for single services, batches and transfers.

    Where nobody knows the memory's bandwidth, filling it with zeros is as good as free.
    """
    link, costs = device.link, device.unified_memory.costs
    memory_bytes_per_s = device.memory_bytes_per_s or 1e15
    return make(
        "um_pages_costs",
        batch_max=costs.fault_batch_max.value,
        batch_ns=costs.batch_ns.value,
        entry_ns=costs.entry_ns.value,
        block_ns=costs.block_ns.value,
        migrate_ns=costs.migrate_ns.value,
        first_map_ns=costs.first_map_ns.value,
        transfer_ns=link.h2d.fixed_ns.value,
        evict_ns=costs.evict_ns.value,
        host_fault_ns=costs.host_fault_ns.value,
        prefetch_call_ns=costs.prefetch_call_ns.value,
        prefetch_block_ns=costs.prefetch_block_ns.value,
        advise_call_ns=costs.advise_call_ns.value,
        read_mostly_block_ns=costs.read_mostly_block_ns.value,
        accessed_by_block_ns=costs.accessed_by_block_ns.value or 0,
        h2d_bytes_per_s=round(link.h2d.bytes_per_s.value),
        d2h_bytes_per_s=round(link.d2h.bytes_per_s.value),
        zero_bytes_per_s=round(memory_bytes_per_s * costs.zero_share.value),
        remote_bytes_per_s=round(link.h2d.bytes_per_s.value * costs.remote_share.value),
        prefetch_bytes_per_s=round(costs.prefetch_bytes_per_s.value or 0),
    )
