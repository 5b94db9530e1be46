"""Drawings as SVG, without a library: panels one below the other, each with lines, lanes, axes, ticks and a legend.

Where the reader's system is dark, so are they.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.sax.saxutils import escape

PLOT_WIDTH = 580
PLOT_HEIGHT = 280
_LEFT, _TOP, _BOTTOM = 70, 50, 50
_LEGEND = 60  # from the plot's right end; before it there is room for the limit's name
_ROW = 18
_LANE, _LANE_GAP = 24, 14
# Of the widest letters that words have on average, for the place that they need: no font is known here.
_LETTER, _TITLE_LETTER = 7.2, 9.0
_MOST_TICKS = 8
# Okabe and Ito's colours, which colour-blind people tell apart; dashes tell the rest.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_DASHES = ("", "7 4", "2 3")
# Rules beat attributes: these change the colours that are written below.
_DARK = {
    "[fill='white']{fill": "#16181d",
    "text{fill": "#e3e5ea",
    "[stroke='black'],[stroke='#000000']{stroke": "#e3e5ea",
    "[fill='#000000']{fill": "#e3e5ea",
    "[stroke='#dddddd']{stroke": "#3a3e47",
    "[stroke='#0072b2']{stroke": "#2f8fd6",
    "[fill='#0072b2']{fill": "#2f8fd6",
    "[stroke='#cc0000']{stroke": "#ff6b6b",
    "[fill='#cc0000']{fill": "#ff6b6b",
    ".in{fill": "#16181d",
}
_IN_THE_DARK = "".join(f"{rule}:{colour}}}" for rule, colour in _DARK.items())
_STYLE = f".in{{fill:white}}@media (prefers-color-scheme:dark){{{_IN_THE_DARK}}}"


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a drawing. `style` numbers colour and dashes; `marks` draws points; `steps` holds each value.

    `filled` paints what lies between the line and the axis, over the lines before it.
    """

    name: str
    points: Sequence[tuple[float, float]]
    style: int
    marks: bool = False
    steps: bool = False
    filled: bool = False


@dataclass(frozen=True, slots=True)
class Lane:
    """One row below the lines: what happened when, as (begin, end, word); the word is left out where it has no room."""

    name: str
    spans: Sequence[tuple[float, float, str]]
    style: int


@dataclass(frozen=True, slots=True)
class Panel:
    """One drawing, whose y axis begins at zero.

    Attributes:
        title: heading above the drawing.
        x_label: words along the x axis.
        y_label: words along the y axis.
        series: lines that the drawing shows; without any it has lanes alone.
        limit: height of a dashed line across the drawing, and the words on it; None is no such line.
        x_least: the largest value at which the x axis may begin.
        y_most: value of y above which nothing is drawn.
        lanes: rows below the lines, by the same x axis.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    limit: tuple[float, str] | None = None
    x_least: float = 0.0
    y_most: float = math.inf
    lanes: Sequence[Lane] = ()


def render(panels: Sequence[Panel], description: str | None = None) -> str:
    """The drawings as one SVG document.

    Args:
        panels: drawings from top to bottom.
        description: what they show, for those who cannot see it.
    """
    names = [series.name for panel in panels for series in panel.series]
    names += [lane.name for panel in panels for lane in panel.lanes]
    legend = _LEGEND + 30 + _LETTER * max(map(len, names), default=0) + 10
    titles = _TITLE_LETTER * max((len(panel.title) for panel in panels), default=0)
    width = round(_LEFT + max(PLOT_WIDTH + legend, titles))
    height = sum(_height(panel) for panel in panels)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12" role="img">',
        f"<title>{escape('; '.join(panel.title for panel in panels))}</title>",
        *([f"<desc>{escape(description)}</desc>"] if description else []),
        f"<style>{_STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        # A little more than the plot, so that marks on its edges are whole.
        f'<clipPath id="plot"><rect x="{_LEFT - 4}" y="{_TOP - 4}" '
        f'width="{PLOT_WIDTH + 8}" height="{PLOT_HEIGHT + 8}"/></clipPath>',
    ]
    top = 0
    for panel in panels:
        lines.append(f'<g transform="translate(0 {top})">')
        top += _height(panel)
        lines += _panel(panel)
        lines.append("</g>")
    return "\n".join([*lines, "</svg>", ""])


def ticks(most: float, least: float = 0.0) -> list[float]:
    """Round numbers, 1, 2 or 5 times a power of ten apart; the outer ones are `least` and `most`, or next to them.

    From 0 on where `least` is not below `most`.
    """
    if most <= 0 or not math.isfinite(most):
        return [0.0, 1.0]
    span = most - least if 0 < least < most else most
    power = 10.0 ** math.floor(math.log10(span / _MOST_TICKS))
    step = next(factor * power for factor in (1, 2, 5, 10, 20) if factor * power * _MOST_TICKS >= span * (1 - 1e-9))
    first = math.floor((most - span) / step * (1 + 1e-9))
    return [index * step for index in range(first, math.ceil(most / step * (1 - 1e-9)) + 1)]


def _plot_height(panel: Panel) -> int:
    return PLOT_HEIGHT if panel.series or not panel.lanes else 0


def _lanes_top(panel: Panel) -> int:
    plot = _plot_height(panel)
    return _TOP + max(plot, _ROW * len(panel.series)) + (_LANE_GAP if plot else 0)


def _bottom(panel: Panel) -> int:
    """Where the x axis is."""
    return _lanes_top(panel) + _LANE * len(panel.lanes) if panel.lanes else _TOP + PLOT_HEIGHT


def _height(panel: Panel) -> int:
    return max(_bottom(panel), _TOP + _ROW * len(panel.series)) + _BOTTOM


@dataclass(frozen=True, slots=True)
class _Axes:
    x_least: float
    x_most: float
    y_most: float

    def x(self, value: float) -> float:
        return _LEFT + (value - self.x_least) / (self.x_most - self.x_least) * PLOT_WIDTH

    def y(self, value: float) -> float:
        return _TOP + (1 - value / self.y_most) * PLOT_HEIGHT


def _panel(panel: Panel) -> list[str]:
    points = [point for series in panel.series for point in series.points]
    ends = [end for lane in panel.lanes for _, end, _ in lane.spans]
    x_ticks = ticks(max([x for x, _ in points] + ends, default=0), panel.x_least)
    y_most = max([y for _, y in points] + ([panel.limit[0]] if panel.limit else []), default=0)
    y_ticks = ticks(min(y_most, panel.y_most))
    axes = _Axes(x_ticks[0], x_ticks[-1], y_ticks[-1])
    right, bottom = axes.x(axes.x_most), _bottom(panel)
    lines = [_text(_LEFT, 24, panel.title, 'font-size="14" font-weight="bold"')]
    for value in x_ticks:
        lines.append(_line(axes.x(value), bottom, axes.x(value), bottom + 4))
        lines.append(_text(axes.x(value), bottom + 18, f"{value:.10g}", 'text-anchor="middle"'))
    lines.append(_line(_LEFT, bottom, right, bottom))
    lines.append(_text((_LEFT + right) / 2, bottom + 38, panel.x_label, 'text-anchor="middle"'))
    if _plot_height(panel):
        lines += _heights(panel, axes, y_ticks, right)
    for index, series in enumerate(panel.series):
        lines += _series(series, index, axes)
    for index, lane in enumerate(panel.lanes):
        lines += _lane(lane, _lanes_top(panel) + _LANE * index, axes)
    return lines


def _heights(panel: Panel, axes: _Axes, y_ticks: Sequence[float], right: float) -> list[str]:
    """The y axis and what goes with it."""
    lines: list[str] = []
    for value in y_ticks:
        lines.append(_line(_LEFT, axes.y(value), right, axes.y(value), 'stroke="#dddddd"'))
        lines.append(_text(_LEFT - 8, axes.y(value) + 4, f"{value:.10g}", 'text-anchor="end"'))
    zero, most = axes.y(0), axes.y(axes.y_most)
    middle_y = (zero + most) / 2
    lines.append(_line(_LEFT, zero, _LEFT, most))
    lines.append(_text(18, middle_y, panel.y_label, f'text-anchor="middle" transform="rotate(-90 18 {middle_y:.1f})"'))
    if panel.limit is not None:
        value, name = panel.limit
        lines.append(_line(_LEFT, axes.y(value), right, axes.y(value), 'stroke="#cc0000" stroke-dasharray="4 4"'))
        lines.append(_text(right + 8, axes.y(value) + 4, name, 'fill="#cc0000"'))
    return lines


def _series(series: Series, index: int, axes: _Axes) -> list[str]:
    colour = _COLOURS[series.style % len(_COLOURS)]
    dash = _DASHES[series.style // len(_COLOURS) % len(_DASHES)]
    style = f'stroke="{colour}" stroke-width="1.6"' + (f' stroke-dasharray="{dash}"' if dash else "")
    places = [(axes.x(x), axes.y(y)) for x, y in series.points]
    if series.steps:
        corners = [((x, before), (x, y)) for (_, before), (x, y) in pairwise(places)]
        places = places[:1] + [place for pair in corners for place in pair]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    lines = ['<g clip-path="url(#plot)">']
    if series.filled and places:
        ground = f"{places[-1][0]:.1f},{axes.y(0):.1f} {places[0][0]:.1f},{axes.y(0):.1f}"
        lines.append(f'<polygon points="{path} {ground}" fill="{colour}"/>')
    elif len(places) > 1:
        lines.append(f'<polyline points="{path}" fill="none" {style}/>')
    if series.marks:
        lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
    lines.append("</g>")
    legend_x, legend_y = _LEFT + PLOT_WIDTH + _LEGEND, _TOP + _ROW * index
    lines.append(_line(legend_x, legend_y, legend_x + 24, legend_y, style))
    lines.append(_text(legend_x + 30, legend_y + 4, series.name))
    return lines


def _lane(lane: Lane, top: float, axes: _Axes) -> list[str]:
    colour = _COLOURS[lane.style % len(_COLOURS)]
    height, base = _LANE - 6, top + _LANE - 9
    lines = []
    for begin, end, word in lane.spans:
        left = axes.x(begin)
        width = axes.x(end) - left
        lines.append(f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height}" fill="{colour}"/>')
        if word and _LETTER * (len(word) + 1) <= width:
            lines.append(_text(left + width / 2, base, word, 'class="in" text-anchor="middle"'))
    lines.append(_text(_LEFT + PLOT_WIDTH + 8, base, lane.name))
    return lines


def _line(x1: float, y1: float, x2: float, y2: float, style: str = 'stroke="black"') -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'


def _text(x: float, y: float, words: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{" " if style else ""}{style}>{escape(words)}</text>'
