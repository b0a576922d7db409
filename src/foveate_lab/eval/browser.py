"""Pages in Chromium, for samples that are pictures of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from foveate.errors import InvalidInput, MissingPackage


def program() -> str:
    """Chromium: what CHROMIUM names, or what is called chromium on the PATH.

    Raises:
        InvalidInput: there is none.
    """
    named = os.environ.get("CHROMIUM", "chromium")
    path = shutil.which(named)
    if path is None:
        raise InvalidInput(
            f"pages are drawn by Chromium, and {named!r} is no program here. Install it (Debian: "
            "apt-get install chromium) or set CHROMIUM to the path of a Chromium or Chrome."
        )
    return path


@contextmanager
def window(what: str, size: tuple[int, int]) -> Iterator[Any]:
    """A page of playwright, so many pixels wide and high, for what needs one. When the block is
    left, in whatever way, Chromium ends.

    Raises:
        MissingPackage: playwright is not installed.
        InvalidInput: there is no Chromium, or it draws nothing.
    """
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError as error:
        raise MissingPackage(what, "playwright", "screens") from error
    path = program()
    try:
        with (
            sync_playwright() as playwright,
            closing(playwright.chromium.launch(executable_path=path)) as browser,
        ):
            yield browser.new_page(
                viewport={"width": size[0], "height": size[1]}, color_scheme="light"
            )
    except Error as error:
        raise InvalidInput(f"Chromium ({path}) draws no pages for {what}: {error}") from error
