"""The pictures of the docs are what their generator makes, small, and said in words."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from docs_pictures import FOLDER, PICTURES

MOST_BYTES = 30_000


@pytest.mark.long
def test_the_pictures_are_what_the_generator_makes(tmp_path: Path) -> None:
    """In a process of its own, as it runs by hand. Otherwise: `python tools/docs_pictures.py`, and look at them."""
    tool = Path(sys.modules["docs_pictures"].__file__ or "")
    subprocess.run([sys.executable, tool, tmp_path], check=True)
    assert [name for name in PICTURES if _text(tmp_path, name) != _text(FOLDER, name)] == []
    assert max(len(_text(FOLDER, name)) for name in PICTURES) <= MOST_BYTES


def test_every_picture_is_shown_and_said_in_words() -> None:
    pages = "".join(path.read_text() for path in FOLDER.parent.rglob("*.md"))
    said = {Path(picture).stem: words for words, picture in re.findall(r"!\[([^]]*)\]\(([^)]*\.svg)\)", pages)}
    assert said.keys() >= PICTURES.keys()
    assert all(len(words) > 20 for words in said.values())
    for name in PICTURES:
        drawing = ElementTree.parse(FOLDER / f"{name}.svg").getroot()
        title, description = (drawing.findtext(f"{{http://www.w3.org/2000/svg}}{tag}") for tag in ("title", "desc"))
        assert drawing.attrib["role"] == "img" and title and description


def _text(folder: Path, name: str) -> str:
    return (folder / f"{name}.svg").read_text()
