"""Frames of video files, upright and in RGB, and the times at which they are shown.

A file is gone through twice: once for the times of its frames, which are read off its packets, and
once to decode it as far as the last frame that is wanted. PyAV passes over much in silence: a file
that ends early, packets that do not decode, frames that are to be turned. It is said here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foveate.data.clip import Clip, check_sampling, shown_at, wanted
from foveate.data.texts import check_file, reason
from foveate.errors import InvalidInput, MissingPackage

# Playlists are left out: they make a decoder read other files than the one that was named.
FORMATS = "mov,mp4,matroska,webm,avi,gif,mpegts,mpeg,flv,ogg,asf"
MISSING = 0.5, 0.02  # seconds, and share, by which a whole file may be shorter than it says

# A file declares how long it lasts. These formats count that from time zero, also where the first
# frame comes later (a part of a recording); the others count it from the first frame.
FROM_ZERO = frozenset({"matroska", "webm", "asf"})


@dataclass(frozen=True)
class VideoFile:
    """A video file, and which of its frames are to be taken: see :func:`read_video`."""

    path: Path
    fps: int | float | None = None
    frames: int | None = None
    start: int | float = 0.0
    end: int | float | None = None

    @cached_property
    def clip(self) -> Clip:
        """The frames; read when they are asked for the first time. Raises as read_video does."""
        return read_video(
            self.path, fps=self.fps, frames=self.frames, start=self.start, end=self.end
        )


def read_video(
    path: str | Path,
    *,
    fps: int | float | None = None,
    frames: int | None = None,
    start: int | float = 0.0,
    end: int | float | None = None,
) -> Clip:
    """Frames of the first video stream of a file, each once; all of them where neither a rate nor a
    number is given. Pixels are as they are stored, turned as the file says; a frame takes height x
    width x 3 bytes.

    Args:
        path: of the file, whose format is one of :data:`FORMATS`.
        fps: so many a second: at each of these times the frame that is shown then.
        frames: so many, at even distances from the first to the last; all where there are fewer.
        start: seconds after the first frame, from which on frames are taken.
        end: seconds after the first frame, up to which frames are taken; None is the end.

    Raises:
        InvalidInput: there is no such file, or it is none of a video, holds sound alone, has no
            frame there, is cut short, or is broken.
        InvalidParameter: a rate, number or time that is out of range, or both a rate and a number.
        MissingPackage: PyAV is not installed.
    """
    path = Path(path)
    check_sampling(fps, frames, start, end)
    with _opened(path) as (container, stream):
        origin, times = _times(container, stream, repr(str(path)))
        alone = float(stream.average_rate or 1)
    chosen, last = wanted(times, fps, frames, start, end), float(times[-1])
    rate = (len(times) - 1) / last if last > 0 else alone
    if not chosen:
        raise InvalidInput(
            f"{str(path)!r} has no frame after {start:g} s: it lasts {last + 1 / rate:.2f} s."
        )
    with _opened(path) as (container, stream):
        decoded, corrupt = _decoded(container, stream, origin + times, chosen)
    if not decoded:
        raise InvalidInput(
            f"{str(path)!r}: none of its frames can be decoded ({corrupt} broken packets)."
        )
    return Clip(
        _stacked(list(decoded.values()), repr(str(path))),
        times[list(decoded)],
        rate,
        (last if end is None else min(end, last)) - float(times[chosen[0]]) + 1 / rate,
        corrupt,
        path.name,
    )


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """The container and its first video stream; whatever the decoder says is our error."""
    try:
        import av
    except ImportError as error:
        raise MissingPackage("a video", "av", "video") from error
    check_file(path)
    options = {"format_whitelist": FORMATS, "protocol_whitelist": "file"}
    try:
        # titles and comments may be in any encoding, and are not read here
        where = str(path.absolute())
        with av.open(where, options=options, metadata_errors="replace") as container:
            if not container.streams.video:
                raise InvalidInput(_without_pictures(path, container))
            stream = container.streams.video[0]
            # PyAV decodes frame by frame, as it does by itself: side by side is faster, but what a
            # broken packet takes with it would then depend on the number of cores
            yield container, stream
    except av.FFmpegError as error:
        raise InvalidInput(
            f"{str(path)!r} cannot be read as a video ({error.strerror or reason(error)}): it is "
            f"broken or cut short, or its format is none of {FORMATS.replace(',', ', ')}."
        ) from error


def _without_pictures(path: Path, container: Any) -> str:
    kinds = sorted({stream.type for stream in container.streams})
    if kinds:
        return f"{str(path)!r} holds {' and '.join(kinds)} alone, and no video."
    return f"{str(path)!r} has no streams: it is cut short, or was not written to its end."


def _times(container: Any, stream: Any, name: str) -> tuple[float, NDArray[np.float64]]:
    """The first frame's time, and seconds of every frame after it, in order.

    Raises:
        InvalidInput: there is none, or the file ends before it says that it does.
    """
    shown_times: list[float] | None = []
    finish, begin = 0.0, (container.start_time or 0) / 1e6
    for packet in container.demux():
        shown = packet.stream.index == stream.index and packet.size and not packet.is_discard
        if packet.pts is None:
            if shown:  # as of raw streams, and of AVI with frames out of order
                shown_times = None
            continue
        if shown and shown_times is not None:
            shown_times.append(float(packet.pts * packet.time_base))
        finish = max(finish, float((packet.pts + (packet.duration or 0)) * packet.time_base))
    declared = (container.duration or 0) / 1e6
    lasts = finish if FROM_ZERO & {*container.format.name.split(",")} else finish - begin
    if declared - lasts > max(MISSING[0], MISSING[1] * declared):
        raise InvalidInput(
            f"{name} is cut short: it declares {declared:.2f} s, and ends after "
            f"{max(0.0, lasts):.2f} s."
        )
    if shown_times is None:
        container.seek(0)
        shown_times = [time for _, time in _shown(container, stream, [0])]
    if not shown_times:
        raise InvalidInput(f"{name} has no frames: it is empty, cut short or broken.")
    times = np.unique(shown_times)
    return float(times[0]), times - times[0]


def _decoded(
    container: Any, stream: Any, times: NDArray[np.float64], chosen: list[int]
) -> tuple[dict[int, NDArray[np.uint8]], int]:
    """The chosen frames by their numbers, and how many packets did not decode: where one is lost,
    it is the frame before it, which stays on the screen.
    """
    frames: dict[int, NDArray[np.uint8]] = {}
    corrupt, left = [0], list(chosen)
    before: tuple[int, Any] | None = None
    for frame, time in _shown(container, stream, corrupt):
        (number,) = shown_at(times, np.array([time])).tolist()
        while left and number >= left[0]:
            at, shown = (number, frame) if number == left[0] or not before else before
            frames.setdefault(at, _upright(shown))
            left.pop(0)
        before = number, frame
        if not left:
            return frames, corrupt[0]
    if left and before:
        frames.setdefault(before[0], _upright(before[1]))
    return frames, corrupt[0]


def _shown(container: Any, stream: Any, corrupt: list[int]) -> Iterator[tuple[Any, float]]:
    """Every frame that decodes, and its time in seconds; adds to the first of ``corrupt`` for every
    packet that does not.
    """
    from av.error import InvalidDataError

    number = 0
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
        except InvalidDataError:
            corrupt[0] += 1
            continue
        for frame in frames:
            known = frame.time is not None
            yield frame, frame.time if known else number / float(stream.average_rate or 1)
            number += 1


def _upright(frame: Any) -> NDArray[np.uint8]:
    pixels: NDArray[np.uint8] = frame.to_ndarray(format="rgb24")
    quarters = round(frame.rotation / 90)
    if abs(frame.rotation - 90 * quarters) > 1:
        raise InvalidInput(
            f"a video that is to be turned by {frame.rotation} degrees is not read: only quarters "
            "are. Write it anew, upright."
        )
    return np.ascontiguousarray(np.rot90(pixels, quarters))


def _stacked(frames: list[NDArray[np.uint8]], name: str) -> NDArray[np.uint8]:
    sizes = {frame.shape[1::-1] for frame in frames}
    if len(sizes) > 1:
        said = " and ".join(f"{width} x {height}" for width, height in sorted(sizes))
        raise InvalidInput(f"{name} has frames of several sizes: {said}. Scale them to one.")
    return np.stack(frames)
