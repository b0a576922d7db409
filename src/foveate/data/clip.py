"""Frames of a video with their times, and the sampling of frames from a file."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from foveate.errors import InvalidParameter

HAIR = 1e-6  # seconds: tolerance for rounding, as times are quotients


@dataclass(frozen=True, eq=False)
class Clip:
    """Frames of a video.

    Attributes:
        frames: uint8 [n, height, width, 3], RGB.
        times: float64 [n], display time of each frame in seconds after the file's first frame.
        fps: average frame rate of the file.
        duration: seconds of the part of the file that the frames come from.
        corrupt: number of packets that could not be decoded, in the part of the file that was read.

    Raises:
        InvalidParameter: no frames, or frames of another shape or dtype; a number of times that
            differs from that of frames; times that are not sorted; a rate or duration of 0 or less.
    """

    frames: NDArray[np.uint8]
    times: NDArray[np.float64]
    fps: float
    duration: float
    corrupt: int = 0
    name: str = field(default="a video", repr=False)

    def __post_init__(self) -> None:
        shape, times = np.shape(self.frames), np.asarray(self.times)
        if len(shape) != 4 or shape[3] != 3 or 0 in shape or self.frames.dtype != np.uint8:
            raise InvalidParameter(
                f"frames of a Clip are {getattr(self.frames, 'dtype', None)} {list(shape)}: give "
                "uint8 [n, height, width, 3], at least one."
            )
        in_order = bool(np.isfinite(times).all() and (np.diff(times) >= 0).all())
        if times.shape != shape[:1] or not in_order:
            raise InvalidParameter(
                f"times of a Clip of {shape[0]} frames are {times.tolist()!s:.80}: give a number "
                "of seconds for each frame, in order."
            )
        for name, number in (("fps", self.fps), ("duration", self.duration)):
            if not 0 < number < math.inf:
                raise InvalidParameter(f"{name}={number} of a Clip: give a finite number above 0.")

    def __repr__(self) -> str:
        height, width = self.frames.shape[1:3]
        return (
            f"Clip({self.name}: {len(self)} frames of {width}x{height}, "
            f"{self.times[0]:.1f} to {self.times[-1]:.1f} s)"
        )

    def __len__(self) -> int:
        return len(self.times)

    @property
    def images(self) -> tuple[Image.Image, ...]:
        """Frames as RGB images."""
        return tuple(Image.fromarray(frame) for frame in self.frames)

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata for video processors of transformers (``video_metadata``), to be used with
        ``do_sample_frames=False``.

        Processors divide frame numbers by the rate to get times. So for a variable rate, the
        numbers are those that the average rate would have at the frames' times.
        """
        height, width = self.frames.shape[1:3]
        return {
            "total_num_frames": max(len(self), round(self.duration * self.fps)),
            "fps": self.fps,
            "duration": self.duration,
            "frames_indices": [round(time * self.fps) for time in self.times.tolist()],
            "width": width,
            "height": height,
            "video_backend": "pyav",
        }


def check_sampling(
    fps: int | float | None,
    frames: int | None,
    start: int | float = 0.0,
    end: int | float | None = None,
) -> None:
    """Raise InvalidParameter for a sampling that is contradictory or out of range."""
    if fps is not None and frames is not None:
        raise InvalidParameter(f"fps={fps} and frames={frames} exclude each other: give only one.")
    if fps is not None and not (math.isfinite(fps) and fps > 0):
        raise InvalidParameter(f"fps={fps}: give a number of frames a second above 0.")
    if frames is not None and (frames < 1 or frames != int(frames)):
        raise InvalidParameter(f"frames={frames}: give a whole number of frames, at least 1.")
    if not 0 <= start < math.inf or (end is not None and not start <= end):
        raise InvalidParameter(
            f"start={start}, end={end}: give seconds from 0 on, the end not before the start."
        )


def choose_frames(
    times: NDArray[np.float64],
    fps: int | float | None,
    frames: int | None,
    start: int | float,
    end: int | float | None,
) -> list[int]:
    """Return the indices of the sampled frames, without duplicates, in ascending order.

    Arguments are those of :func:`foveate.read_video`; ``times`` [n] are the frames' display times.
    """
    stop = times[-1] if end is None else min(end, times[-1])
    if start > times[-1] + HAIR:
        return []
    if fps is not None:
        sample_times = start + np.arange(math.floor((stop - start) * fps + HAIR) + 1) / fps
        return [int(i) for i in np.unique(frames_at(times, sample_times))]
    first, last = frames_at(times, np.array([start, stop]))
    count = last - first + 1 if frames is None else min(frames, last - first + 1)
    return [int(i) for i in np.unique(np.linspace(first, last, count).round())]


def frames_at(times: NDArray[np.float64], at: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the indices of the frames that are on screen at the times ``at``."""
    return np.maximum(np.searchsorted(times, at + HAIR, side="right") - 1, 0)
