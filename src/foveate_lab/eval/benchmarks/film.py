"""What benchmarks with videos share: where a clip is, which frames are taken, how choices stand."""

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
    places: Sequence[str],
    fps: int | float | None,
    frames: int | None,
    start: int | float = 0.0,
    end: int | float | None = None,
) -> VideoFile:
    """A clip of a record, which is at one of the places ("data/{}.mp4"); its frames are read later.

    Raises:
        InvalidInput: it is at none of them, or leads out of the folder.
    """
    path = folder.named_file(name, record.where, *places)
    frames = FILM_FRAMES if fps is None and frames is None else frames
    return VideoFile(path, fps, frames, start, end)


def film_prompt(question: str, choices: Sequence[str] = ()) -> str:
    """The prompt of a question, whose choices stand below it, or in it."""
    return "\n".join([ASK, question, *choices])


def lettered(options: Sequence[str], form: str = "{}. {}") -> list[str]:
    """The choices behind their letters, where they do not begin with them already."""
    if all(one.lstrip().startswith(letter) for one, letter in zip(options, LETTERS, strict=False)):
        marks = {one.lstrip()[1:2] for one in options}
        if marks <= set(".):"):
            return list(options)
    return [form.format(letter, one) for letter, one in zip(LETTERS, options, strict=False)]


def answer_of(record: Record, field: str = "answer") -> str:
    """A letter as the right answer.

    Raises:
        InvalidInput: it is none.
    """
    answer = record.text(field).strip().strip("().")
    if len(answer) != 1 or answer not in LETTERS:
        raise InvalidInput(
            f"{record.where}: the field {field!r} is {answer!r}; it has to be a letter of a choice."
        )
    return answer
