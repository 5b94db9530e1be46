"""The page: a document that holds all that it needs, and may load nothing."""

from html import escape
from importlib import resources
from importlib.resources.abc import Traversable

import msgspec

from umadvise.records.fault_profile import FaultProfile, Finding
from umadvise.reports.html import charts, comparison, tables
from umadvise.reports.html.markup import Section, paragraph, table
from umadvise.reports.reporters import text

_HERE = resources.files("umadvise.reports.html")
# The browser itself refuses whatever would be loaded.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def render(profile: FaultProfile, against: FaultProfile | None = None) -> str:
    """The report of a run as one HTML document.

    Args:
        profile: profile of the run.
        against: profile of another run, to compare it with.
    """
    title, *lines = text.heading(profile)
    drawn = charts.payload(profile, against)
    sections = [each for each in _sections(profile, against, drawn) if each.body]
    links = "".join(f"<li>{each.link}</li>" for each in sections)
    data = msgspec.json.encode(drawn).decode().replace("<", "\\u003c")
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en">',
            f'<head>\n<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{_file('uplot', 'uPlot.min.css')}\n{_file('report.css')}</style>\n</head>",
            f"<body>\n<header>\n<h1>{escape(title)}</h1>\n{''.join(map(paragraph, lines))}",
            f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n</header>\n<main>',
            *(each.html for each in sections),
            "</main>",
            f'<script type="application/json" id="charts">{data}</script>',
            f"<script>\n/*\n{_file('uplot', 'LICENSE')}*/\n{_library()}\n{_file('report.js')}</script>",
            "</body>\n</html>\n",
        )
    )


def _sections(profile: FaultProfile, against: FaultProfile | None, drawn: list[charts.Chart]) -> list[Section]:
    if profile.step_count == 0:
        return [Section("step", "A step", [paragraph("No step was completed, so nothing can be said of one.")])]
    picture = profile.picture
    totals = table("Per step", ("what", "how much", "of which"), text.total_rows(profile))
    findings = [_finding(each) for each in profile.findings] or [paragraph("None.")]
    return [
        Section("findings", "Findings", findings),
        Section("totals", "What a step costs", [totals]),
        Section("compared", "Two runs compared", _compared(profile, against) if against is not None else []),
        Section("steps", "Steps", [_figures(drawn, steps=True), tables.seconds(profile), tables.steps(profile)]),
        Section("time", "One step in time", [_in_time(profile, drawn)]),
        Section("subjects", "Faults and swaps by module, tensor and op", list(tables.by_subject(profile))),
        Section("predicted", "Predicted against measured", [tables.predicted(profile)]),
        Section("tensors", "Tensors", [tables.tensors(picture)] if picture is not None else []),
        Section("stalls", "Stalls", [tables.stalls(picture)] if picture is not None else []),
    ]


def _file(*parts: str) -> str:
    found: Traversable = _HERE.joinpath(*parts)
    return found.read_text(encoding="utf-8")


def _library() -> str:
    """The library without its first line, a comment with an address: no address stands in a report."""
    banner, _, code = _file("uplot", "uPlot.iife.min.js").partition("\n")
    assert banner.startswith("/*!")
    return code


def _finding(finding: Finding) -> str:
    heading = f"<h3>{escape(finding.id)} <small>({escape(finding.severity)}, {escape(finding.subject)})</small></h3>"
    body = paragraph(finding.message) + paragraph(finding.advice)
    return f'<div class="finding {finding.severity}">{heading}{body}</div>'


def _compared(profile: FaultProfile, against: FaultProfile) -> list[str]:
    if against.step_count == 0:
        return [paragraph("The other run has no step.")]
    other = "; ".join(text.heading(against)[:2])
    said = paragraph(f"The other run: {other}. Changes are those from the other run to this one.")
    return [said, comparison.totals(profile, against), *comparison.by_subject(profile, against)]


def _in_time(profile: FaultProfile, drawn: list[charts.Chart]) -> str:
    picture = profile.picture
    if picture is None:
        return ""
    said = f"Step {picture.step}. Zoom by dragging, with the buttons, or with keys: + and - zoom, Shift and arrow keys "
    said += "move, arrow keys read values, 0 shows all. "
    if not picture.ops:
        said += "No step like it was recorded, so memory and lifetimes are unknown. "
    said += "The tables below hold the same numbers."
    return paragraph(said) + '<div id="zoom"></div>' + _figures(drawn, steps=False)


def _figures(drawn: list[charts.Chart], *, steps: bool) -> str:
    return "\n".join(
        f'<figure data-chart="{chart["name"]}"><figcaption>{escape(chart["title"])}'
        f"{', ' + chart['unit'] if chart['unit'] else ''}</figcaption>"
        "<noscript>Pictures need scripts; the tables do not.</noscript></figure>"
        for chart in drawn
        if (chart["name"] == "steps") == steps
    )
