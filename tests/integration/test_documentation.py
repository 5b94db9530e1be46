"""Every block of code in README.md and the pages of docs runs as it stands, those of a page one after the other.

A comment before a block says what a reader would have to have, or why it does not run here:

    <!-- run:                                     <!-- not run: needs a GPU -->
    replace: device="auto" => device="emulated"
    model = torch.nn.Linear(4, 2)
    -->
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import warm_processes

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(?:^<!-- (run|not run):(.*?)-->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INTERPRETERS = {"python": ["python", "-"], "sh": ["bash", "-euo", "pipefail", "-s"]}
SHOWN = {"text", "toml"}
LINK = re.compile(r"\]\(((?!https?://)[^)#\s]+)[^)\s]*\)")
LIMIT_S = 300


@dataclass(frozen=True)
class Block:
    """A block of code, and what the comment before it says."""

    language: str
    code: str
    verb: str
    said: str

    @property
    def program(self) -> str:
        """What runs: the comment's lines, then the block with the comment's replacements."""
        lines = self.said.splitlines()
        code = self.code
        for line in lines:
            if line.startswith("replace: "):
                shown, _, real = line.removeprefix("replace: ").partition(" => ")
                assert shown in code, f"{shown} is not in the block"
                code = code.replace(shown, real)
        return "\n".join([*(line for line in lines if not line.startswith("replace: ")), code])


def blocks(page: Path) -> list[Block]:
    found = BLOCK.findall(page.read_text())
    return [Block(language, code, verb, said.strip()) for verb, said, language, code in found]


LONG = ["compiled.md", "devices.md", "diff.md", "example.md", "fit.md", "ranks.md", "trainer.md", "without-the-card.md"]
"""Pages that take half of the time of all; tests of their commands run always."""
RUN = [page for page in PAGES if any(each.language in INTERPRETERS and each.verb != "not run" for each in blocks(page))]


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=page.name, marks=[pytest.mark.long] * (page.name in LONG)) for page in RUN]
)
def test_blocks_run(page: Path, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    tools = os.pathsep.join([str(warm_processes.folder()), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": tools, "OMP_NUM_THREADS": "2", "EXAMPLES": str(ROOT / "examples")}
    environment["PYTHON_EXEC"] = warm_processes.python()  # what torchrun starts
    for block in blocks(page):
        if block.language not in INTERPRETERS or block.verb == "not run":
            continue
        command = INTERPRETERS[block.language]
        ended = subprocess.run(
            command,
            input=block.program,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        assert ended.returncode == 0, f"{block.program}\n{ended.stderr[-3000:]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_say_what_they_are(page: Path) -> None:
    assert page.read_text().count("\n```") == 2 * len(blocks(page))
    assert {each.language for each in blocks(page)} <= {*INTERPRETERS, *SHOWN}
    assert all(each.said for each in blocks(page) if each.verb)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    """Anchors too, within docs: `make docs`."""
    prose = re.sub(r"^```.*?^```$|<!--.*?-->|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert [link for link in LINK.findall(prose) if not (page.parent / link).exists()] == []


def test_the_readme_names_every_tutorial() -> None:
    links = {ROOT / link for link in LINK.findall((ROOT / "README.md").read_text())}
    assert set((ROOT / "docs" / "tutorials").glob("*.md")) <= links
