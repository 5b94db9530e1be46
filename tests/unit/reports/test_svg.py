from xml.etree import ElementTree

import pytest

from umadvise.reports.reporters import svg

NAMESPACE = "{http://www.w3.org/2000/svg}"


def drawn(*panels: svg.Panel, description: str | None = None) -> ElementTree.Element:
    return ElementTree.fromstring(svg.render(panels, description))


def words(drawing: ElementTree.Element) -> list[str]:
    return ["".join(text.itertext()) for text in drawing.iter(f"{NAMESPACE}text")]


def test_a_drawing_has_a_title_and_a_description_for_those_who_cannot_see_it() -> None:
    line = svg.Series("a", [(0.0, 1.0)], 0)
    drawing = drawn(svg.Panel("One", "x", "y", [line]), svg.Panel("<Two>", "x", "y", [line]), description="a & b")
    assert drawing.attrib["role"] == "img"
    assert drawing.findtext(f"{NAMESPACE}title") == "One; <Two>"
    assert drawing.findtext(f"{NAMESPACE}desc") == "a & b"
    assert "prefers-color-scheme:dark" in (drawing.findtext(f"{NAMESPACE}style") or "")


def test_lanes_stand_below_each_other_and_keep_the_scale() -> None:
    lanes = [svg.Lane("ops", [(0.0, 2.0, "mm"), (2.0, 2.1, "no room")], 0), svg.Lane("copies", [(5.0, 10.0, "")], 1)]
    drawing = drawn(svg.Panel("t", "ms", "", (), lanes=lanes))
    rects = [rect.attrib for rect in drawing.findall(f"{NAMESPACE}g/{NAMESPACE}rect")]
    assert [float(rect["width"]) for rect in rects] == pytest.approx([116, 5.8, 290], abs=0.11)
    assert float(rects[2]["x"]) - float(rects[0]["x"]) == pytest.approx(290, abs=0.11)
    tops = [float(rect["y"]) for rect in rects]
    assert tops[0] == tops[1] and tops[2] >= tops[0] + float(rects[0]["height"])
    assert float(drawing.attrib["height"]) > tops[2] + float(rects[2]["height"])
    assert {"ops", "copies", "mm", "ms"} <= set(words(drawing)) and "no room" not in words(drawing)


def test_lanes_below_lines_share_their_axis_and_the_next_drawing_follows() -> None:
    line = svg.Series("a", [(0.0, 1.0), (10.0, 2.0)], 0, filled=True)
    lanes = [svg.Lane("ops", [(0.0, 10.0, "")], 1)]
    drawing = drawn(svg.Panel("t", "ms", "y", [line], lanes=lanes), svg.Panel("u", "ms", "y", [line]))
    first, second = drawing.findall(f"{NAMESPACE}g")
    polygon, rect = first.find(f".//{NAMESPACE}polygon"), first.find(f"{NAMESPACE}rect")
    assert polygon is not None and rect is not None
    corners = [tuple(map(float, pair.split(","))) for pair in polygon.attrib["points"].split()]
    left, right = float(rect.attrib["x"]), float(rect.attrib["x"]) + float(rect.attrib["width"])
    assert [x for x, _ in corners] == pytest.approx([left, right, right, left])
    assert corners[2][1] == corners[3][1] == max(y for _, y in corners)  # the ground is the axis' zero
    assert float(rect.attrib["y"]) > corners[2][1]
    offset = float(second.attrib["transform"].split()[1].rstrip(")"))
    assert offset > float(rect.attrib["y"]) + float(rect.attrib["height"])
