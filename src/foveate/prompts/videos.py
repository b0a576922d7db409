"""Video inputs of processors, and the images that their visual tokens show.

Processors get decoded frames with metadata, for three reasons. A path would be decoded with
whichever package is installed. Without metadata, processors assume 24 frames a second, which makes
the positions of Qwen2.5-VL and the timestamps of Qwen3-VL wrong. Without
``do_sample_frames=False``, they sample from the frames again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from foveate.data import Clip
from foveate.errors import InvalidInput
from foveate.models.token_grids import frames_of_each
from foveate.prompts.images import is_array, to_image


def video_list(videos: Any, name: str = "videos") -> list[Any]:
    """Return a list of videos from a list, a single clip, or frames [n, ...] of a single video.

    The frames are not converted.

    Raises:
        InvalidInput: a value is no video; the message names it: ``videos[1]``.
    """
    if isinstance(videos, Clip | str | os.PathLike) or is_array(videos):
        check_video(videos, name)
        return [videos]
    if not isinstance(videos, Iterable) or isinstance(videos, Mapping):
        raise InvalidInput(
            f"{name} is of type {type(videos).__name__!r}: give a list of foveate.Clip."
        )
    several = list(videos)
    for number, video in enumerate(several):
        check_video(video, f"{name}[{number}]")
    return several


def check_video(video: Any, name: str) -> None:
    """Raise InvalidInput for a value that is no video."""
    if video is None:
        raise InvalidInput(
            f"{name} has no frames (a chat that was loaded from a file has none of its earlier "
            'videos): give a part such as {"type": "video", "video": CLIP}.'
        )
    if isinstance(video, str | os.PathLike):
        raise InvalidInput(
            f"{name}: {os.fspath(video)!r:.200} is a path instead of frames: "
            "give videos=[foveate.read_video(PATH, frames=8)]."
        )
    frames = is_array(video) and video.ndim == 4 and len(video) > 0
    images = isinstance(video, Sequence) and not isinstance(video, bytes) and len(video) > 0
    if not (isinstance(video, Clip) or frames or images):
        raise InvalidInput(
            f"{name}: this {type(video).__name__} is no video: give a foveate.Clip, an array or "
            "tensor of frames [n, height, width, 3], or a list of images."
        )


def video_inputs(processor: Any, videos: Sequence[Any]) -> dict[str, Any]:
    """Return a processor's keyword arguments for videos; none without videos.

    An array or a list of frames has no times: processors assume 24 frames a second.

    Raises:
        InvalidInput: a value is no video, or the processor takes images only.
    """
    if not videos:
        return {}
    if not takes_videos(processor):
        raise InvalidInput(
            f"this {type(processor).__name__} takes no videos: pass their frames as images "
            "(images=clip.images)."
        )
    frames = [frames_of(video, f"videos[{number}]") for number, video in enumerate(videos)]
    return {
        "videos": frames,
        "video_metadata": [_metadata(*pair) for pair in zip(videos, frames, strict=True)],
        "do_sample_frames": False,
    }


def takes_videos(processor: Any) -> bool:
    """Return True if a processor takes videos; for others frames are images."""
    return getattr(processor, "video_processor", None) is not None


def pictures(
    clips: Sequence[Clip], images: Sequence[Image.Image], inputs: Mapping[str, Any]
) -> tuple[list[Image.Image], list[float]]:
    """Return the images that a prompt's visual tokens show, in order, and the frames' times in s.

    Frames come first, then the images. If one grid of tokens covers several frames, its image is
    the first of them.
    """
    counts = frames_of_each(inputs) or [len(clip) for clip in clips]
    frames: list[Image.Image] = []
    times: list[float] = []
    for clip, count in zip(clips, counts, strict=True):
        for number in (grid * len(clip) // count for grid in range(count)):
            frames.append(Image.fromarray(clip.frames[number]))
            times.append(float(clip.times[number]))
    return [*frames, *images], times


def frames_of(video: Any, name: str = "a video") -> NDArray[np.uint8]:
    """Return a video's frames, uint8 [n, height, width, 3].

    Raises:
        InvalidInput: it is no video, or its frames have several sizes.
    """
    check_video(video, name)
    if isinstance(video, Clip):
        return video.frames
    frames = [np.asarray(to_image(frame, f"{name}[{i}]")) for i, frame in enumerate(video)]
    sizes = {frame.shape[:2] for frame in frames}
    if len(sizes) > 1:
        raise InvalidInput(f"{name} has frames of the sizes {sorted(sizes)}: scale them to one.")
    return np.stack(frames)


def _metadata(video: Any, frames: Any) -> dict[str, Any]:
    if isinstance(video, Clip):
        return video.metadata
    count = len(frames)
    return {"total_num_frames": count, "fps": None, "frames_indices": list(range(count))}
