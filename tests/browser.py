"""Pages in Chromium: every one that is opened here has to be silent, and to ask for nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from foveate.errors import InvalidInput
from foveate_lab.eval.browser import program

__all__ = ["browser", "chromium", "open_page", "overflow"]

OpenPage = Callable[..., AbstractContextManager[Page]]


@pytest.fixture(scope="session")
def chromium() -> str:
    """The program. Tests that need it are skipped where there is none, in one line of the summary;
    with FOVEATE_TESTS_NEED_CHROMIUM=1, as in CI, they fail.
    """
    try:
        return program()
    except InvalidInput as error:
        if os.environ.get("FOVEATE_TESTS_NEED_CHROMIUM") == "1":
            pytest.fail(str(error), pytrace=False)
        pytest.skip(f"no browser: {error}")


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """Chromium, without a window."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium)
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Browser) -> OpenPage:
    """Opens a file in a window of that width.

    When the block is left, the page must have had no error, no line on the console, no dialog, and
    must have asked for nothing but itself and data that it holds.
    """

    @contextmanager
    def opened(path: Path, width: int = 1280, scheme: str = "light") -> Iterator[Page]:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
        )
        context.set_default_timeout(120_000)  # two cores may be busy with other tests
        page = context.new_page()
        heard: list[str] = []
        page.on("console", lambda message: heard.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: heard.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (heard.append("a dialog"), dialog.dismiss()))
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        yield page
        assert heard == []
        assert [url for url in asked if url != path.as_uri() and not url.startswith("data:")] == []
        context.close()

    return opened


def overflow(page: Page) -> list[str]:
    """What reaches beyond the window's right edge, unless it scrolls by itself."""
    found: list[str] = page.evaluate(
        """() => {
          const wide = document.documentElement.clientWidth;
          const clipped = (e) => {
            for (; e && e !== document.documentElement; e = e.parentElement)
              if (["auto", "scroll", "hidden"].includes(getComputedStyle(e).overflowX)) return true;
            return false;
          };
          const all = [...document.body.querySelectorAll("*")];
          return all.filter((e) => e.getBoundingClientRect().right > wide + .5 && !clipped(e))
            .map((e) => e.outerHTML.slice(0, 80))
            .concat(document.documentElement.scrollWidth > wide ? ["the page scrolls"] : []);
        }"""
    )
    return found
