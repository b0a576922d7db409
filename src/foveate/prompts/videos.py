"""Videos as processors of transformers take them: frames that are decoded and chosen already, and
what they have to know of them.

Given a path, a processor decodes with whichever package it finds. Given frames without metadata, it
takes them for 24 a second: the positions of Qwen2.5-VL and the times that Qwen3-VL writes are wrong
then. Without ``do_sample_frames=False`` it chooses among them once more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from foveate.data import Clip
from foveate.errors import InvalidInput


def films(processor: Any, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the processor is given of the videos among a message's parts; nothing without any. Of an
    array nobody knows when its frames are shown: they are taken for 24 a second.

    Raises:
        InvalidInput: a part without frames, or whose video is none; a processor of images alone.
    """
    videos = [_frames(part) for part in parts if part["type"] == "video"]
    if not videos:
        return {}
    if getattr(processor, "video_processor", None) is None:
        raise InvalidInput(
            f"this {type(processor).__name__} takes no videos: show their frames as images "
            "(images=clip.images)."
        )
    return {
        "videos": [one.frames if isinstance(one, Clip) else one for one in videos],
        "video_metadata": [_metadata(one) for one in videos],
        "do_sample_frames": False,
    }


def _metadata(video: Any) -> dict[str, Any]:
    if isinstance(video, Clip):
        return video.metadata
    count = len(video)
    return {"total_num_frames": count, "fps": None, "frames_indices": list(range(count))}


def _frames(part: Mapping[str, Any]) -> Any:
    """A clip, or an array, tensor or list of frames."""
    given = part.get("video")
    if given is None:
        raise InvalidInput(
            "a video of this conversation has no frames (a chat that was loaded does not keep "
            'them): give a part such as {"type": "video", "video": CLIP}.'
        )
    if isinstance(given, str | Path):
        raise InvalidInput(
            f"{str(given)!r:.200} is no frames: give videos=[foveate.read_video(PATH, frames=8)]."
        )
    if isinstance(given, Clip) or len(getattr(given, "shape", ())) == 4:
        return given
    if isinstance(given, Sequence) and given:
        return list(given)
    raise InvalidInput(
        f"this {type(given).__name__} is no video: give a foveate.Clip, or frames "
        "[n, height, width, 3]."
    )
