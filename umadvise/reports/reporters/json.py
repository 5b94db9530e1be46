"""The fault profile as data."""

from umadvise.records.fault_profile import FaultProfile, encode


def render(profile: FaultProfile) -> str:
    """The profile as JSON with a `schema` field: the text of its file."""
    return encode(profile).decode()
