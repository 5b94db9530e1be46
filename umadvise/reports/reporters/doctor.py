"""A diagnosis for people, and as JSON."""

import textwrap

from umadvise.doctor.records import Diagnosis
from umadvise.reports.reporters.printing import DEFAULT_WIDTH

_LEAST_WIDTH = 60
_NAME_WIDTH = 22


def render(diagnosis: Diagnosis, width: int = DEFAULT_WIDTH) -> str:
    """Each check with what to do about it, then what works here."""
    width = max(width, _LEAST_WIDTH)
    lines = [f"umadvise {diagnosis.umadvise_version} on {diagnosis.system}", ""]
    for check in diagnosis.checks:
        lines += _paragraph(f"{check.state:<9}{check.name:<{_NAME_WIDTH}} ", check.found, width)
        if check.remedy is not None:
            lines += _paragraph(" " * (9 + _NAME_WIDTH + 1) + "-> ", check.remedy, width)
    lines += ["", "What works here"]
    for ability in diagnosis.abilities:
        why = "" if ability.because is None else f": {ability.because}"
        lines += _paragraph("yes      " if ability.works else "no       ", f"{ability.name}{why}", width)
    return "\n".join(lines) + "\n"


def _paragraph(start: str, text: str, width: int) -> list[str]:
    """A text whose further lines stand under its first one; long paths stay whole."""
    one_line = " ".join(text.split())
    return textwrap.wrap(
        one_line,
        width,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    )
