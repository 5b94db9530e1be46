"""A hook of MkDocs (`hooks` of mkdocs.yml): ends the build where its strict mode would not, and the site is not right.

No page asks another machine for anything: what a browser loads by itself lies in the site. And no page has an element
that HTML does not know: that is a word in angle brackets, such as `<advice>`, which no reader would see.
"""

import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

ELSEWHERE = re.compile(r"(?:https?:)?//")
IN_STYLES = re.compile(r"(?:url\(|@import )\s*[\"']?((?:https?:)?//[^\"')\s;]+)")
LOADING_LINKS = {"dns-prefetch", "icon", "manifest", "modulepreload", "preconnect", "prefetch", "preload", "stylesheet"}
ELEMENTS = re.compile(
    r"a|abbr|article|aside|b|blockquote|body|br|button|circle|code|dd|del|details|div|dl|dt|em|"
    r"footer|form|g|h1|h2|h3|h4|h5|h6|head|header|hr|html|i|img|input|ins|kbd|label|li|link|"
    r"main|mark|meta|nav|noscript|ol|option|p|path|pre|rect|s|script|section|select|small|source|"
    r"span|strong|style|sub|summary|sup|svg|table|tbody|td|th|thead|title|tr|ul|video"
)
"""Those that the theme and these pages use."""


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.problems: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        if not ELEMENTS.fullmatch(tag):
            self.problems.append(f"has <{tag}>, which is no element: write `<{tag}>` in backticks")
        loads = [values.get("src", ""), values.get("poster", "")]
        if tag == "link" and LOADING_LINKS & set(values.get("rel", "").split()):
            loads.append(values.get("href", ""))
        asked = [address for address in loads if ELSEWHERE.match(address)]
        asked += IN_STYLES.findall(values.get("style", ""))
        self.problems += [f"asks for {address}" for address in asked]


def problems(text: str, *, style: bool = False) -> list[str]:
    """What is wrong with a page, or with a style sheet, in words.

    Args:
        text: the whole file.
        style: whether it is a style sheet.
    """
    if style:
        return [f"asks for {address}" for address in IN_STYLES.findall(text)]
    page = _Page()
    page.feed(text)
    return page.problems


def on_post_build(config: Mapping[str, Any]) -> None:
    """Looks at the whole site when MkDocs has written it.

    Raises:
        ValueError: something is wrong; the message has all of it.
    """
    site = Path(config["site_dir"])
    found = [
        f"{path.relative_to(site)} {problem}"
        for path in sorted(site.rglob("*"))
        if path.suffix in {".css", ".html"}
        for problem in problems(path.read_text(), style=path.suffix == ".css")
    ]
    if found:
        raise ValueError("the site is not right:\n" + "\n".join(found))
