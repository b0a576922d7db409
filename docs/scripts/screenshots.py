"""Looks at the built site in Chromium, as a window and as a phone has it: docs/screenshots/*.png.

python docs/scripts/screenshots.py SITE

Fails where a page reaches beyond the window, where something is wrong on its console, or where the
search, from disk, finds nothing.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from foveate_lab.eval.browser import program  # noqa: E402
from tests.browser import overflow  # noqa: E402

FOLDER = ROOT / "docs" / "screenshots"
WIDTHS = {1280: 800, 390: 844}
COLORS = 32  # of a picture, which then takes a third of its bytes
PAGES = {
    "landing": "index.html",
    "start": "start.html",
    "method": "methods/mixkv.html",
    "api": "api/policies.html",
    "board": "quality.html#query-aware",
}


def main(site: Path) -> None:
    """Writes a picture of each page at each width."""
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program())
        for width in WIDTHS:
            for name, address in PAGES.items():
                path = FOLDER / f"{name}-{width}.png"
                path.write_bytes(small(looked_at(browser, site, address, width)))
        searched(browser, site)
        browser.close()


def opened(browser: Browser, site: Path, address: str, width: int) -> tuple[Page, list[str]]:
    """A page of the site, from disk, and what is heard on its console."""
    page = browser.new_page(viewport={"width": width, "height": WIDTHS[width]})
    page.set_default_timeout(300_000)
    heard: list[str] = []
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    file, _, place = address.partition("#")
    page.goto((site / file).as_uri() + (f"#{place}" if place else ""))
    page.wait_for_timeout(1500)  # frames, and scrolling to the place
    return page, heard


def looked_at(browser: Browser, site: Path, address: str, width: int) -> bytes:
    """What a window of that width shows of a page."""
    page, heard = opened(browser, site, address, width)
    if faults := overflow(page) + heard:
        raise SystemExit(f"{address} at {width}: {faults}")
    shown = page.screenshot()
    page.close()
    return shown


def searched(browser: Browser, site: Path) -> None:
    """Finds a method's page by its name."""
    page, _ = opened(browser, site, "index.html", max(WIDTHS))
    page.locator(".md-search__input").fill("snapkv")
    page.locator(".md-search-result__link[href*='methods/snapkv.html']").first.wait_for()
    page.close()


def small(png: bytes) -> bytes:
    """The same picture in few colors."""
    out = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(COLORS).save(out, "PNG", optimize=True)
    return out.getvalue()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
