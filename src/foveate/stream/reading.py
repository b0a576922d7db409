"""Chunks and questions of a stream: their text, input tensors and images.

A question is answered on a branch of the cache, so that the stream's own does not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from PIL import Image
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, StoppingCriteriaList

from foveate.cache.tokens import image_index, spot_index
from foveate.chat.generation import Answer, generate_options, to_answer
from foveate.chat.storage import bytes_of
from foveate.chat.usage import AnswerMeter
from foveate.data import Clip, VideoParts
from foveate.errors import InvalidInput
from foveate.hf import Session
from foveate.hf.endless.endless import finish
from foveate.hf.model.devices import input_device
from foveate.hf.model.internals import CACHE
from foveate.hf.model.modality import starts_in_runs, visual_tokens
from foveate.prompts.images import find_source, image_list
from foveate.prompts.inputs import encode, moved, text_ids
from foveate.prompts.messages import check_text
from foveate.prompts.special_tokens import Literals, has_first_token, tokenizer_of
from foveate.prompts.template import Wording, check_kept, check_not_set_here, render

_QUESTION = "\ufffc"  # placeholder of the question while a template is examined


class Words(NamedTuple):
    """Text of a stream: ``opening`` once, ``frame`` with every image, ``closing`` with a question.

    In ``frame``, "{number}" is the image's number from 1, and "{time}" its time as a text, or "".
    In ``closing``, "{question}" is the question. ``follow`` comes between an answer and the answer
    to a follow-up question, and has "{question}", too; follow-up questions need it.
    """

    opening: str
    frame: str
    closing: str
    follow: str = ""

    @classmethod
    def of(cls, processor: Any, system: str | None = None, **template: Any) -> Words:
        """Derive the text from the chat template, of a message with images and then a question.

        Args:
            processor: a processor with a chat template.
            system: the system prompt; by default the template's own.
            **template: more arguments of ``apply_chat_template``.

        Raises:
            InvalidParameter: an argument that Foveate sets itself.
            InvalidInput: there is no chat template, or it does not repeat the same text for each of
                several images.
        """
        check_not_set_here(template)
        texts = [_render_question(processor, system, images, template) for images in (1, 2, 3, 4)]
        split = _split_repeats(texts, 1) or _split_repeats(texts, 2)
        if split is None:
            raise InvalidInput(
                "this chat template does not repeat the same text for every image, so the text of "
                "a frame cannot be derived from it. "
                "Give words=foveate.stream.Words(opening, frame, closing); one image is "
                f"{texts[0]!r}."
            )
        opening, image, closing = split
        closing = closing.replace(_QUESTION, "{question}")
        return cls(opening, "{time}" + image, closing, _follow(processor, template))

    def of_frame(self, number: int, time: int | float | None) -> str:
        """Return the text of a frame; ``time`` is in seconds."""
        time_text = "" if time is None else f"<{time:.1f} seconds>"
        return self.frame.replace("{number}", str(number)).replace("{time}", time_text)

    def of_question(self, question: str) -> str:
        """Return the text that ends the prompt."""
        return self.closing.replace("{question}", question)

    def of_follow_up(self, question: str) -> str:
        """Return the text after an answer that asks another question.

        Raises:
            InvalidInput: these words have no text for it.
        """
        if "{question}" not in self.follow:
            raise InvalidInput(
                "a follow-up question needs the text between an answer and the next question, and "
                "these words have none: give words=foveate.stream.Words(opening, frame, closing, "
                'follow="...{question}...").'
            )
        return self.follow.replace("{question}", question)


def _split_repeats(texts: Sequence[str], first: int) -> tuple[str, str, str] | None:
    """Split prompts of 1, 2, 3 and 4 images into opening, frame and closing, or return None.

    The ``first`` number of images to look at is 2 for templates that number images only where there
    are several. Numbers become "{number}".
    """
    less, more = texts[first - 1 : first + 1]
    size = len(more) - len(less)
    same = next((i for i, (a, b) in enumerate(zip(less, more, strict=False)) if a != b), len(less))
    for end in range(same, max(same - size, first * size) - 1, -1):  # end of the frames in `less`
        start = end - first * size
        opening, image, closing = less[:start], less[start : start + size], less[end:]
        for frame in (image, image.replace("1", "{number}")):
            numbered = [frame.replace("{number}", str(number)) for number in (1, 2, 3, 4)]
            repeats = [opening + "".join(numbered[:n]) + closing for n in range(first, 5)]
            if size > 0 and repeats == list(texts[first - 1 :]) and _QUESTION in closing:
                return opening, frame, closing
    return None


def _follow(processor: Any, template: Mapping[str, Any]) -> str:
    """Return the template's text between an answer and the next one, or "" if it has none."""
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "x"}]},
        {"role": "assistant", "content": "x"},
        {"role": "user", "content": "{question}"},
    ]
    try:
        return Wording(processor, template).around(messages, 1)[1]
    except InvalidInput:  # a template for single turns
        return ""


def _render_question(
    processor: Any, system: str | None, images: int, template: Mapping[str, Any]
) -> str:
    parts = [{"type": "image"}] * images + [{"type": "text", "text": _QUESTION}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": parts}]
    if system is not None:
        text = Literals(processor).marked(system)
        messages.insert(0, {"role": "system", "content": [{"type": "text", "text": text}]})
    try:
        check_kept(messages, messages, lambda probes: render(processor, probes, template))
        return render(processor, messages, template)
    except InvalidInput as error:
        raise InvalidInput(
            f"{str(error).rstrip('.')}. Give words=foveate.stream.Words(opening, frame, closing)."
        ) from error


Frames = Any
"""Image of any form, several in order, a clip, or a processor's output for a chunk."""
_IDS = "input_ids"


class Chunk(NamedTuple):
    """Chunk of a stream: the model's inputs, and each token's image and spot.

    ``image`` is the number of the token's image in the stream. ``spot`` is the index of a visual
    token within its image. Text belongs to the next image, at the end to the last one; its spots
    follow those of the visual tokens.
    ``times`` are those of the images in seconds, if known.
    """

    inputs: Mapping[str, Any]
    image: Int[Tensor, "1 t"]
    spot: Int[Tensor, "1 t"]
    images: int
    times: Sequence[int | float | None]

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return self.image.shape[1]


def of_text(model: PreTrainedModel, processor: Any, text: str, first: bool) -> Int[Tensor, "1 t"]:
    """Return the ids of a text without frames; only the ``first`` gets special tokens added."""
    added = first and not has_first_token(tokenizer_of(processor), text)
    ids = text_ids(processor, text, add_special_tokens=added)
    return torch.tensor([ids], dtype=torch.long, device=input_device(model))


class Exchange(NamedTuple):
    """Question and answer; ``ids`` are the tokens of the answer."""

    question: str
    ids: list[int]


def of_question(
    model: PreTrainedModel,
    processor: Any,
    words: Words,
    question: str,
    earlier: Sequence[Exchange] = (),
) -> Int[Tensor, "1 t"]:
    """Return the ids of a question behind ``earlier`` ones and their answers.

    Special tokens in questions are read as text.

    Raises:
        InvalidInput: the question is no text, or there is no text for a follow-up question.
    """
    parts: list[Int[Tensor, "1 n"]] = []
    render_text = words.of_question
    for text, ids in (*earlier, Exchange(question, [])):
        text = Literals(processor).marked(check_text(text, "the question"))
        parts.append(of_text(model, processor, render_text(text), first=False))
        parts.append(parts[-1].new_tensor([ids]))  # as generated: they may tokenize differently
        render_text = words.of_follow_up
    return torch.cat(parts, dim=1)


VIDEOS = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg")
"""Suffixes of files that are read as videos."""
_TOGETHER = 8  # frames of a video that are read at once


def parts_of(
    frames: Frames, time: int | float | Sequence[int | float] | None, fps: int | float | None
) -> Iterator[tuple[Frames, int | float | Sequence[int | float] | None]]:
    """Split a video into a few frames at a time with their times; anything else is one part.

    Raises:
        InvalidInput: ``fps`` without a video file, several times for a file, or as ``read_video``
            raises.
    """
    suffixes = VIDEOS if fps is None else (*VIDEOS, ".gif")  # without fps a GIF is an image
    if isinstance(frames, str | PathLike) and str(frames).lower().endswith(suffixes):
        if isinstance(time, Sequence):
            raise InvalidInput(
                "a video file has its own times: give a single time=, which is added to them, or "
                "read the file with foveate.read_video."
            )
        file = VideoParts(Path(frames).expanduser(), _TOGETHER, fps=1 if fps is None else fps)
        return (part for clip in file for part in _split(clip, time))
    if fps is not None:
        raise InvalidInput(f"fps={fps} is for the path of a video file: leave it out.")
    return _split(frames, time) if isinstance(frames, Clip) else iter([(frames, time)])


def _split(
    clip: Clip, time: int | float | Sequence[int | float] | None
) -> Iterator[tuple[Frames, Sequence[int | float]]]:
    """Return a clip's frames, a few at a time, with their times; a single ``time`` is added."""
    times: Any = (
        _times(len(clip), time)
        if isinstance(time, Sequence)
        else (clip.times + (time or 0)).tolist()
    )
    parts = [slice(i, i + _TOGETHER) for i in range(0, len(clip), _TOGETHER)]
    return (([Image.fromarray(f) for f in clip.frames[part]], times[part]) for part in parts)


def of_frames(
    model: PreTrainedModel,
    processor: Any,
    words: Words,
    frames: Frames,
    time: int | float | Sequence[int | float] | None,
    before: int,
) -> Chunk:
    """Return the chunk of frames that follow ``before`` images.

    Raises:
        InvalidInput: there is no image or no visual token, or the number of times is not that of
            the images.
    """
    if isinstance(frames, Mapping) and find_source(frames) is None:
        if time is not None:
            raise InvalidInput("a processor's output has its own times: leave out time=")
        return _chunk(model, dict(frames), before)
    images = image_list(frames, "frames")
    times = _times(len(images), time)
    text = "".join(words.of_frame(before + i + 1, at) for i, at in enumerate(times))
    options: Any = {"literals": Literals(processor), "add_special_tokens": False, "nested": False}
    return _chunk(model, encode(model, processor, text, images, **options), before, times)


def _times(
    images: int, time: int | float | Sequence[int | float] | None
) -> Sequence[int | float] | Sequence[None]:
    if not images:
        raise InvalidInput("there is no frame: give see() an image, or a list of images.")
    if time is None:
        return [None] * images
    times = list(time) if isinstance(time, Sequence) else [time] * images
    if len(times) != images:
        raise InvalidInput(f"{images} frames have {len(times)} times: give one for each.")
    return times


def _chunk(
    model: PreTrainedModel,
    inputs: dict[str, Any],
    before: int,
    times: Sequence[int | float | None] = (),
) -> Chunk:
    ids = inputs.get(_IDS)
    if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.shape[0] != 1:
        raise InvalidInput(
            "a chunk of a stream needs one row of input_ids, [1, tokens], with its pixels; it has "
            f"{'none' if ids is None else tuple(getattr(ids, 'shape', ()))}."
        )
    inputs.pop("attention_mask", None)  # a single row has no padding
    vision = visual_tokens(model.config, ids)
    if vision is None or not bool(vision.any()):
        raise InvalidInput(
            "this chunk has no visual token: the text of a frame needs the processor's placeholder "
            "of an image (words=)."
        )
    starts = starts_in_runs(model.config, ids, inputs)
    image, spot = _assign_text(image_index(vision, starts), spot_index(vision, starts))
    count = int(image.max()) + 1
    device = input_device(model)
    times = times if len(times) == count else [None] * count
    return Chunk(moved(inputs, model), (image + before).to(device), spot.to(device), count, times)


def _assign_text(
    image: Int[Tensor, "1 t"], spot: Int[Tensor, "1 t"]
) -> tuple[Int[Tensor, "1 t"], Int[Tensor, "1 t"]]:
    """Assign tokens of text to images, too: image -1 becomes the next image, or the last."""
    last = int(image.max())
    owner = torch.where(image < 0, last, image).flip(-1).cummin(-1).values.flip(-1)
    spot = spot.clone()
    for number in range(last + 1):
        words = (owner == number) & (image < 0)
        size = int((image == number).sum())
        spot[words] = size + torch.arange(int(words.sum()), device=spot.device)
    return owner, spot


def answer(
    session: Session,
    processor: Any,
    branch: DynamicCache,
    ids: Int[Tensor, "1 t"],
    options: Mapping[str, Any],
    stop: Event,
) -> Answer:
    """Answer a question on ``branch``, which is mutated, until ``stop`` is set.

    ``ids`` are the question's tokens.
    """
    model = session.model
    finish(branch)
    session.adopt(branch)
    stats = session.stats
    # generate needs as many ids as the cache has tokens, but reads only the new ones
    reused = branch.get_seq_length()
    padded_ids = torch.cat([ids[:, :1].expand(1, reused), ids], dim=1)
    meter = AnswerMeter(stop, session.policy, lambda: bytes_of(branch))
    criteria = [*(options.get("stopping_criteria") or ()), meter]
    options = {**options, "stopping_criteria": StoppingCriteriaList(criteria)}
    output = model.generate(  # type: ignore[operator]
        input_ids=padded_ids,
        attention_mask=torch.ones_like(padded_ids),
        return_dict_in_generate=False,
        **{CACHE: branch},
        **generate_options(model, processor, options, padded_ids.shape[1]),
    )
    new = output[0, padded_ids.shape[1] :]
    answered = to_answer(model, processor, new, options, stats, stop.is_set())
    meter.note_size()
    usage = meter.usage(ids.shape[1], reused, len(new), bytes_of(branch))
    return answered._replace(usage=usage)
