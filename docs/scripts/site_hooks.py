"""MkDocs hooks that add files outside docs/ and a page for every method to the site.

A link such as ``../benchmarks/results/cpu.md`` works in the repository. In the site, each linked
file becomes a page under ``repository/``, and so do files that this page links to; links are
rewritten to match. Files that `site_pages.py` wrote into build/pages, such as methods' pages, keep
their paths in the site. The version is added to the header and titles, and the search works without
a server.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "build" / "pages"
OUTSIDE = "repository/"
# A link's target; or code, in which links are not rewritten.
LINK = re.compile(
    r"^ *(?P<fence>`{3,}).*?^ *(?P=fence)|`[^`\n]+`|(?<=\]\()(?P<target>[^)\s]+)(?=\))",
    flags=re.MULTILINE | re.DOTALL,
)
# Folders have no page of their own.
FOLDERS = {
    "docs/howto": "howto/cache.md",
    "docs/papers": "methods/index.md",
    "src/foveate/methods": "methods/index.md",
    "benchmarks": "repository/benchmarks/README.md",
}
LEXERS = {".py": "python", ".sh": "bash", ".json": "json", ".yaml": "yaml", ".yml": "yaml"}
# Marker of a page to embed; invisible to readers of the repository.
LIVE = re.compile(r"<!-- live: (?P<page>\S+) (?P<title>.+?) -->")
FRAME = r'<iframe class="live" src="\g<page>" title="\g<title>" loading="lazy"></iframe>'
# Role of Sphinx in a docstring, which MkDocs leaves in front of the code.
ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):(?=<code)")
VERSION = re.compile(r'^__version__ = "(.+)"$', flags=re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the version to the site's name, and each method to the menu."""
    source = (ROOT / "src" / "foveate" / "__init__.py").read_text(encoding="utf-8")
    config.site_name = f"{config.site_name} {VERSION.findall(source)[0]}"
    for section in config.nav or []:
        if "Methods" in section:
            section["Methods"].append({"Each by itself": methods_in_menu()})
    return config


def methods_in_menu() -> list[dict[str, str]]:
    """Return the menu's entries for the pages of methods that site_pages.py wrote."""
    names = sorted(path.stem for path in (PAGES / "methods").glob("*.md"))
    return [{name: f"methods/{name}.md"} for name in names if name != "index"]


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the files written for the site, and repository files that the menu or a link names."""
    if not (PAGES / "methods" / "index.md").is_file():
        raise PluginError("build/pages is missing: `make docs` writes it, then runs mkdocs.")
    for path in sorted(path for path in PAGES.rglob("*") if path.is_file()):
        add(files, config, path.relative_to(PAGES).as_posix(), abs_src_path=str(path))
    found = [uri.removeprefix(OUTSIDE) for uri in listed(config.nav) if uri.startswith(OUTSIDE)]
    for file in list(files.documentation_pages()):
        found += outside(origin(file.src_uri), Path(str(file.abs_src_path)).read_text("utf-8"))
    while found:
        found += include(files, config, found.pop())
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links to the paths of the site, and embed live pages."""
    here = origin(page.file.src_uri)
    # Python-Markdown needs four columns of indent for a table in a list, GitHub only three.
    markdown = re.sub(r"^   (?=\|)", "    ", markdown, flags=re.MULTILINE)
    markdown = LIVE.sub(FRAME, markdown)

    def moved(found: re.Match[str]) -> str:
        target = resolve(here, found["target"] or "")
        if target is None:
            return found[0]
        anchor = urlsplit(found[0]).fragment
        away = posixpath.relpath(site_uri(target), posixpath.dirname(page.file.src_uri) or ".")
        return away + (f"#{anchor}" if anchor else "")

    return LINK.sub(moved, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Remove the roles of Sphinx from docstrings."""
    return ROLE.sub("", html)


@event_priority(-100)  # the search has written its index by then
def on_post_build(*, config: MkDocsConfig) -> None:
    """Write the search index as a script, too: a page opened from disk cannot load JSON."""
    index = Path(config.site_dir) / "search" / "search_index.json"
    script = f"var __index = {index.read_text(encoding='utf-8')}"
    index.with_suffix(".js").write_text(script, encoding="utf-8")


def listed(nav: Any) -> Iterator[str]:
    """Yield every page that the menu names."""
    if isinstance(nav, str):
        yield nav
    elif nav:
        for item in nav.values() if isinstance(nav, dict) else nav:
            yield from listed(item)


def origin(uri: str) -> str:
    """Return the path in the repository of a page of the site."""
    return uri.removeprefix(OUTSIDE) if uri.startswith(OUTSIDE) else f"docs/{uri}"


def site_uri(path: str) -> str:
    """Return the path in the site of a file of the repository."""
    if path in FOLDERS:
        return FOLDERS[path]
    if path.startswith("docs/") and not path.endswith(".py"):
        return path.removeprefix("docs/")
    keeps_name = path.endswith(".md") or is_picture(path)
    return OUTSIDE + (path if keeps_name else f"{path}.md")


def is_picture(path: str) -> bool:
    """Return whether a file is a picture, which needs no page around it."""
    return path.endswith((".png", ".svg"))


def resolve(here: str, link: str) -> str | None:
    """Return the path in the repository of a relative link in ``here``, None if there is none."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc or not parts.path:
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(here), parts.path))
    return path if (ROOT / path).exists() else None  # MkDocs warns of what is missing


def outside(here: str, markdown: str) -> list[str]:
    """Return the files outside docs/ that a page links to."""
    links = (resolve(here, found["target"] or "") for found in LINK.finditer(markdown))
    return [link for link in links if link and site_uri(link).startswith(OUTSIDE)]


def include(files: Files, config: MkDocsConfig, path: str) -> list[str]:
    """Add a file of the repository as a page, and return the files that it links to."""
    path = FOLDERS.get(path, path).removeprefix(OUTSIDE)
    uri, source = site_uri(path), ROOT / path
    if files.get_file_from_path(uri) is not None:
        return []
    if is_picture(path) or path.endswith(".md"):
        add(files, config, uri, abs_src_path=str(source))
        return [] if is_picture(path) else outside(path, source.read_text("utf-8"))
    code = f"````` {LEXERS.get(source.suffix, 'text')}\n{source.read_text('utf-8')}\n`````"
    add(files, config, uri, content=f"# {source.name}\n\n`{path}`\n\n{code}\n")
    return []


def add(files: Files, config: MkDocsConfig, uri: str, **source: str) -> None:
    """Add a page or picture from outside docs/."""
    files.append(File.generated(config, uri, **source))
