"""Parts that benchmarks with videos share: clips, the frames taken of them, and choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from foveate.data import Folder, Record, VideoFile
from foveate.errors import InvalidInput
from foveate.policies.parameters import Range
from foveate_lab.defaults import FILM_FRAMES

ASK = "Which choice answers this question about the video? Reply with its letter alone."
LETTERS = "ABCDEFGH"
_FRAMES_A_SECOND = Range(0, 1000, above=True)
Rate = Annotated[int, _FRAMES_A_SECOND] | Annotated[float, _FRAMES_A_SECOND]
"""Frames a second."""


def video(
    folder: Folder,
    record: Record,
    name: str,
    paths: Sequence[str],
    fps: int | float | None,
    frames: int | None,
    start: int | float = 0.0,
    end: int | float | None = None,
) -> VideoFile:
    """Return a record's clip, found at one of ``paths`` ("data/{}.mp4"); frames are read later.

    Raises:
        InvalidInput: it is at none of them, or leads out of the folder.
    """
    path = folder.named_file(name, record.where, *paths)
    frames = FILM_FRAMES if fps is None and frames is None else frames
    return VideoFile(path, fps, frames, start, end)


def film_prompt(question: str, choices: Sequence[str] = ()) -> str:
    """Return the prompt of a question, with its choices below it unless they are in it."""
    return "\n".join([ASK, question, *choices])


def lettered(options: Sequence[str], form: str = "{}. {}") -> list[str]:
    """Return the choices with a letter in front of each, unless they begin with it already."""
    pairs = [*zip(LETTERS, options, strict=False)]
    if all(option.lstrip().startswith(letter) for letter, option in pairs):
        marks = {option.lstrip()[1:2] for option in options}
        if marks <= set(".):"):
            return list(options)
    return [form.format(letter, option) for letter, option in pairs]


def answer_of(record: Record, field: str = "answer") -> str:
    """Return the letter of the right choice.

    Raises:
        InvalidInput: it is none.
    """
    answer = record.text(field).strip().strip("().")
    if len(answer) != 1 or answer not in LETTERS:
        raise InvalidInput(
            f"{record.where}: the field {field!r} is {answer!r}; it has to be a letter of a choice."
        )
    return answer
