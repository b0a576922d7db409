"""Lines that are typed in a chat: text with paths of images and videos in it, and commands."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlparse

from foveate.errors import InvalidInput

_VIDEOS = r"\.(?:mp4|m4v|mov|mkv|webm|avi|mpe?g)"
_KINDS = rf"(?:\.(?:png|jpe?g|webp|gif|bmp|tiff?)|{_VIDEOS})"
_PATH = re.compile(
    rf"""(?P<mark>['"])(?P<quoted>[^'"\n]+?{_KINDS})(?P=mark)"""
    rf"""|(?P<bare>(?:\\.|[^\s'"])+{_KINDS})(?=$|[\s,;:?!)]|\.(?:\s|$))""",
    re.IGNORECASE,
)


class ChatLine(NamedTuple):
    """What a line says: a command and its argument, or text, images (paths or addresses) and videos
    (paths).
    """

    command: str
    text: str
    images: tuple[str, ...] = ()
    videos: tuple[str, ...] = ()


def read_line(line: str) -> ChatLine:
    """A line of a chat. Paths of images and videos are taken out of the text, as terminals write
    them when a file is dragged into the window: plain, in quotes, with spaces escaped, or as
    ``file://``.

    Raises:
        InvalidInput: the path of an image or video, with a folder or in quotes, that is not there.
    """
    line = line.strip()
    if line.startswith("/") and not _PATH.match(line):
        command, _, argument = line[1:].partition(" ")
        return ChatLine(command, argument.strip())
    images: list[str] = []
    videos: list[str] = []

    def taken(match: re.Match[str]) -> str:
        place = _place(match["quoted"] or match["bare"])
        film = re.search(f"{_VIDEOS}$", place, re.IGNORECASE) is not None
        if Path(place).is_file() or (not film and place.startswith(("http://", "https://"))):
            (videos if film else images).append(place)
            return ""
        if match["quoted"] or "/" in place:
            what = "video file" if film else "image"
            raise InvalidInput(f"there is no {what} at {place!r}.")
        return match[0]

    text = " ".join(_PATH.sub(taken, line).split())
    return ChatLine("", text, tuple(images), tuple(videos))


def _place(written: str) -> str:
    if written.startswith("file://"):
        return unquote(urlparse(written).path)
    if os.name != "nt":  # where a backslash is part of a path
        written = re.sub(r"\\(.)", r"\1", written)
    return str(Path(written).expanduser()) if written.startswith("~") else written
