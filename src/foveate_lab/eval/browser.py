"""Chromium windows, for samples that are screenshots."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from foveate.errors import InvalidInput, MissingPackage


def program() -> str:
    """Return the path of Chromium: CHROMIUM, or chromium on the PATH.

    Raises:
        InvalidInput: Chromium is not installed.
    """
    name = os.environ.get("CHROMIUM", "chromium")
    path = shutil.which(name)
    if path is None:
        raise InvalidInput(
            f"this needs Chromium, and {name!r} is not a program on the PATH. Install it (Debian: "
            "apt-get install chromium) or set CHROMIUM to the path of a Chromium or Chrome."
        )
    return path


@contextmanager
def window(user: str, size: tuple[int, int]) -> Iterator[Any]:
    """Open a page of playwright of a size in pixels; Chromium ends with the block.

    Raises:
        MissingPackage: playwright is not installed.
        InvalidInput: Chromium is missing or draws nothing.
    """
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError as error:
        raise MissingPackage(user, "playwright", "screens") from error
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
        raise InvalidInput(f"Chromium ({path}) draws no pages for {user}: {error}") from error
