"""What goes without what a device lacks: said in the log, or refused in words."""

import logging
from collections.abc import Mapping
from dataclasses import replace

from umadvise import _native
from umadvise._native.abi import Memory
from umadvise.devices.rungs import ADVISE, AUTO, RESIDENT, SWAP, WINDOW, Policy
from umadvise.errors import PolicyError

log = logging.getLogger("umadvise")

MIGRATION = "advice, prefetches and a budget"
CHUNKS = "explicit swapping"
"""Names of features: csrc/memory/features.h."""


def fit_policy(policy: Policy, device: _native.Device) -> tuple[Policy, bool]:
    """Adapts the policy that was asked for to a device; returns also whether the budget is for unified memory too.

    Raises:
        PolicyError: it can do nothing of it.
    """
    features = device.features()
    possible = possible_policy(policy, features)
    return possible, driver_keeps_budget(possible, features)


def possible_policy(policy: Policy, features: Mapping[str, str | None]) -> Policy:
    """The policy of a session on a device: the one that was asked for, or what is left of it.

    Without advice and prefetches `advise` is unified memory alone, and `auto` goes to chunks, or to plain memory where
    there are none either.

    Args:
        policy: policy that was asked for.
        features: features of the device, with the reasons why it lacks them.

    Raises:
        PolicyError: it can do nothing of it.
    """
    reason = features[MIGRATION]
    if reason is None:
        return policy
    if policy == AUTO:
        left = SWAP if features[CHUNKS] is None else RESIDENT
        log.warning("policy auto is %s on this device: %s", left.name, reason)
        return replace(left, keeps_budget=left is not RESIDENT)  # `auto` refuses no step
    if policy.name == WINDOW.name:
        raise PolicyError(f"policy window needs prefetches: {reason}. Use swap, or resident where everything fits")
    if policy.name == ADVISE.name:
        log.warning("policy advise is unified memory without advice on this device: %s", reason)
    return policy


def driver_keeps_budget(policy: Policy, features: Mapping[str, str | None]) -> bool:
    """Whether a session's budget is for unified memory too: not where the driver cannot and nothing need be there."""
    elsewhere = policy.memory != Memory.MANAGED
    return features[MIGRATION] is None or not elsewhere
