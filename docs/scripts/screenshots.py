"""Screenshots of the built site in Chromium, on a desktop and a phone: docs/screenshots/*.png.

python docs/scripts/screenshots.py SITE

Fails if a page overflows the window or writes to the console, or if the search, from disk, finds
nothing.
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
COLORS = 32  # per image, which reduces it to a third of its bytes
PAGES = {
    "landing": "index.html",
    "start": "start.html",
    "method": "methods/mixkv.html",
    "api": "api/policies.html",
    "board": "quality.html#query-aware",
}


def main(site: Path) -> None:
    """Save a screenshot of each page at each width, and check the search."""
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program())
        for width in WIDTHS:
            for name, address in PAGES.items():
                path = FOLDER / f"{name}-{width}.png"
                path.write_bytes(small(capture(browser, site, address, width)))
        check_search(browser, site)
        browser.close()


def open_page(browser: Browser, site: Path, address: str, width: int) -> tuple[Page, list[str]]:
    """Open a page of the site from disk; return it and its console messages so far."""
    page = browser.new_page(viewport={"width": width, "height": WIDTHS[width]})
    page.set_default_timeout(300_000)
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    file, _, anchor = address.partition("#")
    page.goto((site / file).as_uri() + (f"#{anchor}" if anchor else ""))
    page.wait_for_timeout(1500)  # frames, and scrolling to the anchor
    return page, messages


def capture(browser: Browser, site: Path, address: str, width: int) -> bytes:
    """Return a screenshot of a page, as PNG; exit if it overflows or has console messages."""
    page, messages = open_page(browser, site, address, width)
    if faults := overflow(page) + messages:
        raise SystemExit(f"{address} at {width}: {faults}")
    png = page.screenshot()
    page.close()
    return png


def check_search(browser: Browser, site: Path) -> None:
    """Find a method's page by its name."""
    page, _ = open_page(browser, site, "index.html", max(WIDTHS))
    page.locator(".md-search__input").fill("snapkv")
    page.locator(".md-search-result__link[href*='methods/snapkv.html']").first.wait_for()
    page.close()


def small(png: bytes) -> bytes:
    """Reduce an image to few colors."""
    out = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(COLORS).save(out, "PNG", optimize=True)
    return out.getvalue()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
