"""Some frames of a video, and which of a file's frames they are."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from foveate.errors import InvalidParameter

HAIR = 1e-6  # seconds: times are quotients


@dataclass(frozen=True, eq=False)
class Clip:
    """Frames of a video.

    Attributes:
        frames: uint8 [n, height, width, 3], RGB.
        times: float64 [n], seconds after the file's first frame at which each is shown.
        fps: frames a second of the file, on average.
        duration: seconds of the part of the file that they are of.
        corrupt: packets of the file, as far as it was read, that could not be decoded.

    Raises:
        InvalidParameter: no frame or frames of another shape or dtype, another number of times than
            frames, times that are not in order, or a rate or duration that is not above 0.
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

    def __len__(self) -> int:
        return len(self.times)

    @property
    def images(self) -> tuple[Image.Image, ...]:
        """Each frame as an image, in RGB."""
        return tuple(Image.fromarray(frame) for frame in self.frames)

    @property
    def metadata(self) -> dict[str, Any]:
        """What video processors of transformers take as ``video_metadata``, with
        ``do_sample_frames=False``. Of a rate that varies, numbers of frames are those that the
        average rate would have at these times: processors make times of them by dividing.
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
    """Raises InvalidParameter for what no frames can be taken by."""
    if fps is not None and frames is not None:
        raise InvalidParameter(f"fps={fps} and frames={frames} exclude each other: give one.")
    if fps is not None and not (math.isfinite(fps) and fps > 0):
        raise InvalidParameter(f"fps={fps}: give a number of frames a second above 0.")
    if frames is not None and (frames < 1 or frames != int(frames)):
        raise InvalidParameter(f"frames={frames}: give a whole number of frames, at least 1.")
    if not 0 <= start < math.inf or (end is not None and not start <= end):
        raise InvalidParameter(
            f"start={start}, end={end}: give seconds from 0 on, the end not before the start."
        )


def wanted(
    times: NDArray[np.float64],
    fps: int | float | None,
    frames: int | None,
    start: int | float,
    end: int | float | None,
) -> list[int]:
    """The numbers of the frames that are taken, each once, in order."""
    stop = times[-1] if end is None else min(end, times[-1])
    if start > times[-1] + HAIR:
        return []
    if fps is not None:
        wanted_times = start + np.arange(math.floor((stop - start) * fps + HAIR) + 1) / fps
        return [int(i) for i in np.unique(shown_at(times, wanted_times))]
    first, last = shown_at(times, np.array([start, stop]))
    count = last - first + 1 if frames is None else min(frames, last - first + 1)
    return [int(i) for i in np.unique(np.linspace(first, last, count).round())]


def shown_at(times: NDArray[np.float64], wanted_times: NDArray[np.float64]) -> NDArray[np.intp]:
    """The numbers of the frames that are shown at these times."""
    return np.maximum(np.searchsorted(times, wanted_times + HAIR, side="right") - 1, 0)
