"""Chunks and questions of a stream: their text, input tensors and images.

A question is answered on a branch of the cache, so that the stream's own does not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from foveate.cache.tokens import image_index, spot_index
from foveate.chat.generation import Answer, generate_options, to_answer
from foveate.data import Clip
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
from foveate.prompts.template import check_kept, check_not_set_here, render

_QUESTION = "\ufffc"  # placeholder of the question while a template is examined


class Words(NamedTuple):
    """Text of a stream: ``opening`` once, ``frame`` with every image, ``closing`` with a question.

    In ``frame``, "{number}" is the image's number from 1, and "{time}" its time as a text, or "".
    In ``closing``, "{question}" is the question.
    """

    opening: str
    frame: str
    closing: str

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
        texts = [_render_question(processor, system, images, template) for images in (1, 2, 3)]
        single, double, triple = texts
        same = next(
            (i for i, (a, b) in enumerate(zip(single, double, strict=False)) if a != b), len(single)
        )
        size = len(double) - len(single)
        opening, image, closing = single[: same - size], double[same - size : same], single[same:]
        repeats = [opening + image * n + closing for n in (1, 2, 3)]
        if size < 1 or repeats != [single, double, triple] or _QUESTION not in closing:
            raise InvalidInput(
                "this chat template does not repeat the same text for every image (it may number "
                "them), so the text of a frame cannot be derived from it. "
                "Give words=foveate.stream.Words(opening, frame, closing); one image is "
                f"{single!r}."
            )
        return cls(opening, "{time}" + image, closing.replace(_QUESTION, "{question}"))

    def of_frame(self, number: int, time: int | float | None) -> str:
        """Return the text of a frame; ``time`` is in seconds."""
        time_text = "" if time is None else f"<{time:.1f} seconds>"
        return self.frame.replace("{number}", str(number)).replace("{time}", time_text)

    def of_question(self, question: str) -> str:
        """Return the text that ends the prompt."""
        return self.closing.replace("{question}", question)


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
    """

    inputs: Mapping[str, Any]
    image: Int[Tensor, "1 t"]
    spot: Int[Tensor, "1 t"]
    images: int

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return self.image.shape[1]


def of_text(model: PreTrainedModel, processor: Any, text: str, first: bool) -> Int[Tensor, "1 t"]:
    """Return the ids of a text without frames; only the ``first`` gets special tokens added."""
    added = first and not has_first_token(tokenizer_of(processor), text)
    ids = text_ids(processor, text, add_special_tokens=added)
    return torch.tensor([ids], dtype=torch.long, device=input_device(model))


def of_question(
    model: PreTrainedModel, processor: Any, words: Words, question: str
) -> Int[Tensor, "1 t"]:
    """Return the ids of a question; special tokens in it are read as text.

    Raises:
        InvalidInput: the question is no text.
    """
    text = Literals(processor).marked(check_text(question, "the question"))
    return of_text(model, processor, words.of_question(text), first=False)


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
    if isinstance(frames, Clip) and time is None:
        time = frames.times.tolist()
    times = _times(len(images), time)
    text = "".join(words.of_frame(before + i + 1, at) for i, at in enumerate(times))
    options: Any = {"literals": Literals(processor), "add_special_tokens": False, "nested": False}
    return _chunk(model, encode(model, processor, text, images, **options), before)


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


def _chunk(model: PreTrainedModel, inputs: dict[str, Any], before: int) -> Chunk:
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
    return Chunk(moved(inputs, model), (image + before).to(device), spot.to(device), count)


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
) -> Answer:
    """Answer a question on ``branch``, which is mutated; ``ids`` are the question's tokens."""
    model = session.model
    finish(branch)
    session.adopt(branch)
    stats = session.stats
    # generate needs as many ids as the cache has tokens, but reads only the new ones
    padded_ids = torch.cat([ids[:, :1].expand(1, branch.get_seq_length()), ids], dim=1)
    output = model.generate(  # type: ignore[operator]
        input_ids=padded_ids,
        attention_mask=torch.ones_like(padded_ids),
        return_dict_in_generate=False,
        **{CACHE: branch},
        **generate_options(model, processor, options, padded_ids.shape[1]),
    )
    return to_answer(model, processor, output[0, padded_ids.shape[1] :], options, stats)
