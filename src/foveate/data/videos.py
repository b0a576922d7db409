"""Reading of video files: upright RGB frames with their display times.

A file is read twice: first its packets, for the times of its frames, then its frames up to the
last one that was sampled. PyAV reports neither a file that ends early, nor packets that it cannot
decode, nor a rotation of frames; this module does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foveate.data.clip import Clip, check_sampling, choose_frames, frames_at
from foveate.data.texts import check_file, reason
from foveate.errors import InvalidInput, MissingPackage

# Without playlists: they make a decoder read other files than the one that the user named.
FORMATS = "mov,mp4,matroska,webm,avi,gif,mpegts,mpeg,flv,ogg,asf"
MISSING = 0.5, 0.02  # seconds and share by which a complete file may be shorter than declared

# A file declares its duration. These formats count it from time zero, even if the first frame is
# later (a part of a recording); the others count it from the first frame.
FROM_ZERO = frozenset({"matroska", "webm", "asf"})


@dataclass(frozen=True)
class VideoFile:
    """Video file with the arguments of :func:`read_video`."""

    path: Path
    fps: int | float | None = None
    frames: int | None = None
    start: int | float = 0.0
    end: int | float | None = None

    @cached_property
    def clip(self) -> Clip:
        """Sampled frames, read at the first access; raises as ``read_video`` does."""
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
    """Read frames of a file's first video stream: all, or a sample without duplicates.

    Frames have the stored resolution, and are rotated as the file says; each takes height x width x
    3 bytes.

    Args:
        path: a file in one of :data:`FORMATS`.
        fps: sampling rate; at each time, the frame that is on screen is taken.
        frames: number of frames, evenly spaced from the first to the last; at most all.
        start: time of the first frame to take, in seconds after the file's first frame.
        end: time of the last frame to take, in seconds after the file's first frame; None: the end.

    Raises:
        InvalidInput: the file is missing, is no video, has sound only, has no frame in this range,
            is cut short, or is broken.
        InvalidParameter: a rate, number or time that is out of range, or both a rate and a number.
        MissingPackage: PyAV is not installed.
    """
    sampling = _sampling(Path(path), fps, frames, start, end)
    corrupt = [0]
    return _clip(sampling, list(_decoded(sampling, corrupt)), corrupt[0])


class VideoParts:
    """Iterable over a file's sampled frames, as clips of at most ``size`` frames.

    A part is decoded when it is needed, so memory does not grow with the file; the first one is
    decoded at once. Sampling and errors are those of :func:`read_video`. A fault in the middle of
    the file is raised after the parts before it. ``name`` is the file's, and ``count`` the number
    of frames to sample. Parts can be read once.
    """

    def __init__(self, path: str | Path, size: int, *, fps: int | float | None = None):
        sampling = _sampling(Path(path), fps, None, 0.0, None)
        self.name, self.count, self._size = sampling.path.name, len(sampling.chosen), size
        parts = self._read(sampling)
        self._parts = chain([next(parts)], parts)

    def _read(self, sampling: _Sampling) -> Iterator[Clip]:
        corrupt, part = [0], list[tuple[int, NDArray[np.uint8]]]()
        for frame in _decoded(sampling, corrupt):
            if len(part) == self._size:
                yield _clip(sampling, part, corrupt[0])
                part = []
            part.append(frame)
        yield _clip(sampling, part, corrupt[0])

    def __iter__(self) -> Iterator[Clip]:
        return self._parts


class _Sampling(NamedTuple):
    """Frames to take from a file.

    ``times`` are the times of all its frames in s after the first one, which is at ``origin`` in
    the file; ``chosen`` are the indices of those to take. ``rate`` and ``duration`` are those of a
    :class:`Clip`.
    """

    path: Path
    origin: float
    times: NDArray[np.float64]
    chosen: list[int]
    rate: float
    duration: float


def _sampling(
    path: Path,
    fps: int | float | None,
    frames: int | None,
    start: int | float,
    end: int | float | None,
) -> _Sampling:
    """Read the times of a file's frames, and choose some; raises as ``read_video`` does."""
    check_sampling(fps, frames, start, end)
    with _opened(path) as (container, stream):
        origin, times = _times(container, stream, repr(str(path)))
        alone = float(stream.average_rate or 1)
    chosen, last = choose_frames(times, fps, frames, start, end), float(times[-1])
    rate = (len(times) - 1) / last if last > 0 else alone
    if not chosen:
        raise InvalidInput(
            f"{str(path)!r} has no frame after {start:g} s: it lasts {last + 1 / rate:.2f} s."
        )
    duration = (last if end is None else min(end, last)) - float(times[chosen[0]]) + 1 / rate
    return _Sampling(path, origin, times, chosen, rate, duration)


def _clip(
    sampling: _Sampling, frames: Sequence[tuple[int, NDArray[np.uint8]]], corrupt: int
) -> Clip:
    """Return decoded frames, with their indices, as a clip."""
    path = sampling.path
    if not frames:
        raise InvalidInput(f"{str(path)!r}: no frame can be decoded ({corrupt} broken packets).")
    indices, pixels = zip(*frames, strict=True)
    times = sampling.times[list(indices)]
    return Clip(np.stack(pixels), times, sampling.rate, sampling.duration, corrupt, path.name)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """Open a file, and yield its container and first video stream; FFmpeg errors: InvalidInput."""
    try:
        import av
    except ImportError as error:
        raise MissingPackage("a video", "av", "video") from error
    check_file(path)
    options = {"format_whitelist": FORMATS, "protocol_whitelist": "file"}
    try:
        # titles and comments, which are not read, may be in any encoding
        where = str(path.absolute())
        with av.open(where, options=options, metadata_errors="replace") as container:
            if not container.streams.video:
                raise InvalidInput(_without_pictures(path, container))
            stream = container.streams.video[0]
            # thread_type stays PyAV's default: decoding several frames in parallel is faster, but
            # the frames lost with a broken packet would depend on the number of cores
            yield container, stream
    except av.FFmpegError as error:
        raise InvalidInput(
            f"{str(path)!r} cannot be read as a video ({error.strerror or reason(error)}): it is "
            f"broken or cut short, or its format is none of {FORMATS.replace(',', ', ')}."
        ) from error


def _without_pictures(path: Path, container: Any) -> str:
    kinds = sorted({stream.type for stream in container.streams})
    if kinds:
        return f"{str(path)!r} has only {' and '.join(kinds)}, and no video."
    return f"{str(path)!r} has no streams: it is cut short or incomplete."


def _times(container: Any, stream: Any, name: str) -> tuple[float, NDArray[np.float64]]:
    """Return the first frame's time, and all frames' times relative to it in s, sorted.

    Raises:
        InvalidInput: there are no frames, or the file is shorter than it declares.
    """
    frame_times: list[float] | None = []
    finish, begin = 0.0, (container.start_time or 0) / 1e6
    for packet in container.demux():
        is_displayed = packet.stream.index == stream.index and packet.size and not packet.is_discard
        if packet.pts is None:
            if is_displayed:  # raw streams, and AVI with frames out of order, have no times
                frame_times = None
            continue
        if is_displayed and frame_times is not None:
            frame_times.append(float(packet.pts * packet.time_base))
        finish = max(finish, float((packet.pts + (packet.duration or 0)) * packet.time_base))
    declared = (container.duration or 0) / 1e6
    actual = finish if FROM_ZERO & {*container.format.name.split(",")} else finish - begin
    if declared - actual > max(MISSING[0], MISSING[1] * declared):
        raise InvalidInput(
            f"{name} is cut short: it declares {declared:.2f} s, and ends after "
            f"{max(0.0, actual):.2f} s."
        )
    if frame_times is None:
        container.seek(0)
        frame_times = [time for _, time in _displayed(container, stream, [0])]
    if not frame_times:
        raise InvalidInput(f"{name} has no frames: it is empty, cut short or broken.")
    times = np.unique(frame_times)
    return float(times[0]), times - times[0]


def _decoded(sampling: _Sampling, corrupt: list[int]) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Yield the chosen frames with their indices; ``corrupt[0]`` counts packets that do not decode.

    A lost frame is replaced by the one before it, which stays on screen.

    Raises:
        InvalidInput: frames have several sizes.
    """
    path, last, first = sampling.path, -1, None
    with _opened(path) as (container, stream):
        for index, frame in _on_screen(container, stream, sampling, corrupt):
            if index == last:
                continue
            last, pixels = index, _upright(frame)
            first = pixels.shape if first is None else first
            if pixels.shape != first:
                sizes = sorted({first[1::-1], pixels.shape[1::-1]})
                text = " and ".join(f"{width} x {height}" for width, height in sizes)
                raise InvalidInput(
                    f"{str(path)!r} has frames of several sizes: {text}. Scale them to one."
                )
            yield index, pixels


def _on_screen(
    container: Any, stream: Any, sampling: _Sampling, corrupt: list[int]
) -> Iterator[tuple[int, Any]]:
    """Yield the frame that is on screen at each chosen time, and its index, possibly repeated."""
    times, remaining = sampling.origin + sampling.times, list(sampling.chosen)
    previous: tuple[int, Any] | None = None
    for frame, time in _displayed(container, stream, corrupt):
        (number,) = frames_at(times, np.array([time])).tolist()
        while remaining and number >= remaining[0]:
            yield (number, frame) if number == remaining[0] or not previous else previous
            remaining.pop(0)
        previous = number, frame
        if not remaining:
            return
    if previous:
        yield previous


def _displayed(container: Any, stream: Any, corrupt: list[int]) -> Iterator[tuple[Any, float]]:
    """Yield every frame that decodes, with its time in seconds.

    ``corrupt[0]`` counts the packets that do not.
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
            f"this video is rotated by {frame.rotation} degrees, which is no multiple of 90: "
            "encode it again, upright."
        )
    return np.ascontiguousarray(np.rot90(pixels, quarters))
