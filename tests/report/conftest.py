"""Chromium, for pages; and a tiny model that sees."""

from __future__ import annotations

from tests.browser import browser, chromium, open_page

__all__ = ["browser", "chromium", "open_page"]
