"""Tiny video files, written with PyAV: each frame is of one grey that tells its number."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

av: Any = pytest.importorskip("av", reason="PyAV is not installed: pip install 'foveate[video]'")

STEP = 8  # of grey from frame to frame
WIDE, HIGH = 64, 48
KINDS = {
    "film.mp4": ("libx264", "yuv420p"),
    "film.webm": ("libvpx-vp9", "yuv420p"),
    "film.mkv": ("libx264", "yuv420p"),
    "film.avi": ("mpeg4", "yuv420p"),
    "film.gif": ("gif", "rgb8"),
}
"""Names of files, with the codec and the pixels of each."""


def film(path: Path, times: Sequence[float] = tuple(i / 10 for i in range(30))) -> Path:
    """Writes a file of the kind that its name says, with a frame at each of the times, in seconds;
    the upper left quarter of each is black.
    """
    codec, pixels = KINDS[f"film{path.suffix}"]
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10)
        stream.width, stream.height, stream.pix_fmt = WIDE, HIGH, pixels
        stream.codec_context.time_base = Fraction(1, 100)
        for number, time in enumerate(times):
            frame = av.VideoFrame.from_ndarray(grey(number), format="rgb24")
            frame.pts, frame.time_base = round(100 * time), Fraction(1, 100)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def grey(number: int) -> Any:
    """The pixels of a frame, [h, w, 3]."""
    pixels = np.full((HIGH, WIDE, 3), STEP * (number + 1), np.uint8)
    pixels[: HIGH // 2, : WIDE // 2] = 0
    return pixels


def sound(path: Path) -> Path:
    """Writes a file of sound alone."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(
            np.zeros((1, 8000), np.float32), format="fltp", layout="mono"
        )
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def turned(path: Path, matrix: Sequence[float] = (0, 1, -1, 0)) -> Path:
    """Lets an MP4 say that its frames are to be turned: a quarter to the right, as telephones do,
    or by another matrix of two rows, whose numbers are among nine in its track's header.
    """
    held = bytearray(path.read_bytes())
    place, one = held.index(b"tkhd") + 4 + 40, 0x00010000
    a, b, c, d = (round(one * number) for number in matrix)
    nine = (a, b, 0, c, d, 0, 0, 0, 0x40000000)
    held[place : place + 36] = b"".join(n.to_bytes(4, "big", signed=True) for n in nine)
    path.write_bytes(held)
    return path


def spoiled(path: Path, *packets: int) -> Path:
    """Puts what cannot be decoded into the place of these packets."""
    with av.open(str(path)) as container:
        where = [(one.pos, one.size) for one in container.demux(video=0) if one.size]
    held = bytearray(path.read_bytes())
    for position, size in (where[number] for number in packets):
        held[position : position + size] = b"\xff" * size
    path.write_bytes(held)
    return path


def numbers(frames: Any) -> list[int]:
    """Which frames these are, [n, h, w, 3], by the grey of their lower right corner."""
    return [round(float(frame[-8:, -8:].mean()) / STEP) - 1 for frame in frames]
