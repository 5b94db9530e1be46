"""What ends the build of the docs' site."""

from pathlib import Path

import pytest
import site_checks


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example/x.js"></script>',
        "<img src=//cdn.example/x.png>",
        '<link rel="stylesheet" href="https://fonts.example/css">',
        '<link href="https://fonts.example" rel="preconnect">',
        '<p style="background: url(https://cdn.example/x.png)"></p>',
    ],
)
def test_what_a_browser_loads_from_elsewhere_is_found(text: str) -> None:
    (problem,) = site_checks.problems(text)
    assert problem.startswith("asks for ")


@pytest.mark.parametrize(
    "text",
    [
        '<a href="https://zenodo.org">nobody loads it before it is clicked</a>',
        '<script src="assets/x.js"></script><link rel="stylesheet" href="../x.css"><link rel="next" href="https://a/b">',
        '<svg xmlns="http://www.w3.org/2000/svg"><path d="M0 0"/></svg><img src="data:image/png;base64,AAAA">',
        "<code>cuda:&lt;advice&gt;</code><!-- <advice> -->",
    ],
)
def test_everything_else_is_right(text: str) -> None:
    assert site_checks.problems(text) == []


def test_a_word_in_angle_brackets_is_found() -> None:
    assert site_checks.problems('<p>"cuda:<advice>"</p>') == [
        "has <advice>, which is no element: write `<advice>` in backticks"
    ]


def test_style_sheets_load_too() -> None:
    assert site_checks.problems('@import "https://a/b.css"; p{background:url(x.png)}', style=True) == [
        "asks for https://a/b.css"
    ]


def test_the_whole_site_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "index.html").write_text("<p>right</p>")
    site_checks.on_post_build({"site_dir": str(tmp_path)})
    (tmp_path / "deep" / "page.html").write_text("<img src=//a/b.png>")
    with pytest.raises(ValueError, match=r"deep/page\.html asks for //a/b\.png"):
        site_checks.on_post_build({"site_dir": str(tmp_path)})
