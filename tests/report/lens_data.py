"""What a lens says, read off its page again: a decoder that shares nothing with the encoder."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from html.parser import HTMLParser
from typing import Any


class Scripts(HTMLParser):
    """The scripts of a page, each with its attributes; and the tags that there are."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[dict[str, str | None], str]] = []
        self.tags: list[str] = []
        self._open = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._open = tag == "script"
        if self._open:
            self.found.append((dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self._open:
            given, text = self.found[-1]
            self.found[-1] = (given, text + data)

    def handle_endtag(self, tag: str) -> None:
        self._open = False


class Told:
    """The data of a page."""

    def __init__(self, html: str):
        (text,) = [text for given, text in Scripts(html).found if given.get("id") == "data"]
        self.data: dict[str, Any] = json.loads(text)
        self.packet = zlib.decompress(base64.b64decode(self.data["packet"]))
        self.tokens: int = self.data["tokens"]
        self.heads = [layer["heads"] for layer in self.data["layers"]]

    def choice(self, method: int, budget: int) -> dict[str, Any]:
        """One choice."""
        found: dict[str, Any] = self.data["methods"][method]["choices"][budget]
        return found

    def mask(self, what: str, method: int, budget: int) -> list[list[list[int]]]:
        """The tokens that are "kept" or "protected", by layer and head."""
        start = self.data["methods"][method][what][budget // 8]
        rows = []
        for row in range(sum(self.heads)):
            line = self.packet[start + row * self.tokens :][: self.tokens]
            rows.append([t for t in range(self.tokens) if line[t] & 2 ** (budget % 8)])
        return self._by_layer(rows)

    def scores(self, start: int) -> list[list[list[float | None]]]:
        """The scores of a table, by layer and head; None where there is none."""
        count = sum(self.heads)
        ends = struct.unpack_from(f"<{2 * count}f", self.packet, start)
        rows = []
        for row in range(count):
            codes = self.packet[start + 8 * count + row * self.tokens :][: self.tokens]
            low, high = ends[2 * row], ends[2 * row + 1]
            rows.append([None if c == 255 else low + (high - low) * (c / 254) ** 2 for c in codes])
        return self._by_layer(rows)

    def _by_layer(self, rows: list[Any]) -> list[list[Any]]:
        ends = [sum(self.heads[: i + 1]) for i in range(len(self.heads))]
        return [rows[end - heads : end] for end, heads in zip(ends, self.heads, strict=True)]
