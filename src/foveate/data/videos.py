"""Reading of video files: upright RGB frames with their display times.

A file is read twice: first its packets, for the times of its frames, then its frames up to the
last one that was sampled. PyAV reports neither a file that ends early, nor packets that it cannot
decode, nor a rotation of frames; this module does.
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
    path = Path(path)
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
    with _opened(path) as (container, stream):
        decoded, corrupt = _decoded(container, stream, origin + times, chosen)
    if not decoded:
        raise InvalidInput(f"{str(path)!r}: no frame can be decoded ({corrupt} broken packets).")
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


def _decoded(
    container: Any, stream: Any, times: NDArray[np.float64], chosen: list[int]
) -> tuple[dict[int, NDArray[np.uint8]], int]:
    """Return the chosen frames by their indices, and the number of packets that did not decode.

    A lost frame is replaced by the one before it, which stays on screen.
    """
    frames: dict[int, NDArray[np.uint8]] = {}
    corrupt, remaining = [0], list(chosen)
    previous: tuple[int, Any] | None = None
    for frame, time in _displayed(container, stream, corrupt):
        (number,) = frames_at(times, np.array([time])).tolist()
        while remaining and number >= remaining[0]:
            at, visible = (number, frame) if number == remaining[0] or not previous else previous
            frames.setdefault(at, _upright(visible))
            remaining.pop(0)
        previous = number, frame
        if not remaining:
            return frames, corrupt[0]
    if remaining and previous:
        frames.setdefault(previous[0], _upright(previous[1]))
    return frames, corrupt[0]


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


def _stacked(frames: list[NDArray[np.uint8]], name: str) -> NDArray[np.uint8]:
    sizes = {frame.shape[1::-1] for frame in frames}
    if len(sizes) > 1:
        sizes_text = " and ".join(f"{width} x {height}" for width, height in sorted(sizes))
        raise InvalidInput(f"{name} has frames of several sizes: {sizes_text}. Scale them to one.")
    return np.stack(frames)
