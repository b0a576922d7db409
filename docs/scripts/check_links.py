"""Checks a built site: every link inside it leads to a file, and to a place that is in it.

``python docs/scripts/check_links.py SITE`` names those that do not, and exits with 1. MkDocs has
checked the links of Markdown; these are those of the finished pages, of raw HTML and the theme too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

LINKS = {"href", "src", "xlink:href"}


class Found(NamedTuple):
    """A page's links, and the names of places in it."""

    links: list[str]
    places: set[str]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found = Found([], set())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.found.links.extend(given[name] or "" for name in LINKS & set(given))
        self.found.places.update(given[name] or "" for name in {"id", "name"} & set(given))


def read(page: Path) -> Found:
    """What a page links to, and where it can be linked to."""
    reader = _Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    return reader.found


def broken(site: Path) -> Iterator[str]:
    """One line for each link that leads nowhere."""
    pages = {page: read(page) for page in sorted(site.rglob("*.html"))}
    for page, found in pages.items():
        for link in dict.fromkeys(found.links):
            if why := _fault(site, page, link, pages):
                yield f"{page.relative_to(site)}: {link}: {why}"


def _fault(site: Path, page: Path, link: str, pages: Mapping[Path, Found]) -> str:
    """What is wrong with a link; nothing if it leads somewhere, or away from the site."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return ""
    path = unquote(parts.path)
    start = site if path.startswith("/") else page.parent
    target = (start / path.lstrip("/")).resolve() if path else page
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return "no such file"
    place = unquote(parts.fragment)
    missing = place and target in pages and place not in pages[target].places
    return "no such place in that page" if missing else ""


if __name__ == "__main__":
    faults = list(broken(Path(sys.argv[1]).resolve()))
    print("\n".join(faults) if faults else "links: all lead somewhere")
    sys.exit(bool(faults))
