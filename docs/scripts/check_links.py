"""Link checker of a built site: internal links must lead to a file and to an anchor in it.

``python docs/scripts/check_links.py SITE`` prints the broken links and exits with 1. MkDocs checks
only links in Markdown; the finished pages also have those of raw HTML and of the theme.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

LINKS = {"href", "src", "xlink:href"}


class Links(NamedTuple):
    """A page's links, and the anchors in it."""

    targets: list[str]
    anchors: set[str]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links = Links([], set())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.links.targets.extend(values[name] or "" for name in LINKS & set(values))
        self.links.anchors.update(values[name] or "" for name in {"id", "name"} & set(values))


def read(page: Path) -> Links:
    """Parse a page for its links and anchors."""
    reader = _Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    return reader.links


def broken(site: Path) -> Iterator[str]:
    """Yield one line per broken link."""
    pages = {page: read(page) for page in sorted(site.rglob("*.html"))}
    for page, links in pages.items():
        for link in dict.fromkeys(links.targets):
            if why := _fault(site, page, link, pages):
                yield f"{page.relative_to(site)}: {link}: {why}"


def _fault(site: Path, page: Path, link: str, pages: Mapping[Path, Links]) -> str:
    """Return why a link is broken, or "" if it works or leaves the site."""
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
    anchor = unquote(parts.fragment)
    missing = anchor and target in pages and anchor not in pages[target].anchors
    return "no such place in that page" if missing else ""


if __name__ == "__main__":
    faults = list(broken(Path(sys.argv[1]).resolve()))
    print("\n".join(faults) if faults else "links: all lead somewhere")
    sys.exit(bool(faults))
