"""What the papers' networks need, recorded at their sizes: the anchors of the memory rows, and the cost of a block."""

import msgspec
import numpy as np
import pytest
from replay.block_cost import MEASURED_BYTES_PER_S, MEASURED_ON, block_ns, charged
from replay.recording import bert_trace, trace

from umadvise.devices.catalogue import load_device
from umadvise.records.enums import Phase

pytestmark = pytest.mark.long

V100, RTX = "v100-sxm2-power9-16gb", "rtx-6000-24gb"


def kept_bytes(batch: int) -> int:
    """What is live when ResNet-50's backward begins, and was not there before the step."""
    step = trace("resnet50", batch, V100)
    backward = int(np.argmax(step.ops.phase == Phase.BACKWARD))
    made = (step.births >= 0) & (step.births < backward) & (step.deaths >= backward)
    return int(step.storages.bytes[made].sum())


def test_resnet_50_keeps_85_mb_an_image() -> None:
    assert (kept_bytes(128) - kept_bytes(64)) / 64 == pytest.approx(85e6, rel=0.03)


def test_resnet_50_fits_16_gib_with_190_images_and_not_with_256() -> None:
    memory_bytes = load_device(V100).memory_bytes
    assert trace("resnet50", 190, V100).peak_bytes <= memory_bytes < trace("resnet50", 256, V100).peak_bytes


def test_bert_large_fits_24_gb_with_16_sequences_and_not_with_32() -> None:
    pytest.importorskip("transformers")
    usable_bytes = load_device(RTX).usable_bytes
    assert bert_trace(16, RTX).peak_bytes <= usable_bytes < bert_trace(32, RTX).peak_bytes


def test_a_charged_device_serves_blocks_as_fast_as_the_one_that_was_measured() -> None:
    measured_on = charged(load_device(MEASURED_ON))
    assert block_ns(measured_on) == pytest.approx((2 << 20) / MEASURED_BYTES_PER_S * 1e9, rel=1e-3)
    costs = charged(load_device(RTX)).unified_memory.costs
    assert costs.migrate_ns.value == measured_on.unified_memory.costs.migrate_ns.value
    assert msgspec.structs.replace(costs, migrate_ns=load_device(RTX).unified_memory.costs.migrate_ns) == (
        load_device(RTX).unified_memory.costs
    )


def test_a_cost_measured_on_one_link_is_not_charged_on_another() -> None:
    with pytest.raises(ValueError, match="nvlink2-power9: expected pcie3-x16"):
        charged(load_device(V100))
