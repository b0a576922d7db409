"""A chunk of a stream as the model reads it: the text around its frames, its inputs, and which
image each token belongs to; and a question, answered on a branch, so that the stream is not
disturbed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from foveate.cache.tokens import image_index, spot_index
from foveate.chat.asking import Answer, generate_options, to_answer
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

_QUESTION = "\ufffc"  # stands for the question while a template is looked at


class Words(NamedTuple):
    """What a stream reads beside pixels: ``opening`` once, ``frame`` with every image, ``closing``
    with a question. In ``frame``, "{number}" is the image's number from 1 and "{time}" the words of
    its time, if it has one; in ``closing``, "{question}" is the question.
    """

    opening: str
    frame: str
    closing: str

    @classmethod
    def of(cls, processor: Any, system: str | None = None, **template: Any) -> Words:
        """Those of a chat in which a user shows images and then asks.

        Args:
            processor: with a chat template.
            system: the system prompt; left out, the template's own.
            **template: more arguments of ``apply_chat_template``.

        Raises:
            InvalidParameter: an argument that is set here.
            InvalidInput: no chat template, or one that words several images otherwise than one,
                so that no image has words of its own.
        """
        check_not_set_here(template)
        texts = [_asked_of(processor, system, images, template) for images in (1, 2, 3)]
        one, two, three = texts
        same = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), len(one))
        size = len(two) - len(one)
        opening, image, closing = one[: same - size], two[same - size : same], one[same:]
        repeats = [opening + image * n + closing for n in (1, 2, 3)]
        if size < 1 or repeats != [one, two, three] or _QUESTION not in closing:
            raise InvalidInput(
                "this chat template words one image and several in ways of its own (it numbers "
                "them, or asks between them), so a stream does not know the words of a frame. "
                f"Give words=foveate.stream.Words(opening, frame, closing); one image is {one!r}."
            )
        return cls(opening, "{time}" + image, closing.replace(_QUESTION, "{question}"))

    def of_frame(self, number: int, time: int | float | None) -> str:
        """Return the text of an image; ``time`` is in seconds."""
        time_text = "" if time is None else f"<{time:.1f} seconds>"
        return self.frame.replace("{number}", str(number)).replace("{time}", time_text)

    def of_question(self, question: str) -> str:
        """Return the text that ends the prompt."""
        return self.closing.replace("{question}", question)


def _asked_of(processor: Any, system: str | None, images: int, template: Mapping[str, Any]) -> str:
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
"""An image of any form, several of them in order, a clip, or a processor's output of a chunk."""
_IDS = "input_ids"


class Chunk(NamedTuple):
    """What the model is given, with the ``image`` of each token, counted through the stream (-1:
    none), and its ``spot``: which visual token of its image it is. Words belong to the image that
    follows them, the last ones to the last image; their spots come after those of its tokens.
    """

    inputs: Mapping[str, Any]
    image: Int[Tensor, "1 t"]
    spot: Int[Tensor, "1 t"]
    images: int

    @property
    def tokens(self) -> int:
        """How many."""
        return self.image.shape[1]


def of_text(model: PreTrainedModel, processor: Any, text: str, first: bool) -> Int[Tensor, "1 t"]:
    """Return the ids of a text without frames; special tokens are added to the ``first`` alone."""
    added = first and not has_first_token(tokenizer_of(processor), text)
    ids = text_ids(processor, text, add_special_tokens=added)
    return torch.tensor([ids], dtype=torch.long, device=input_device(model))


def of_question(
    model: PreTrainedModel, processor: Any, words: Words, question: str
) -> Int[Tensor, "1 t"]:
    """Return the ids of a question; special tokens that are written in it are text.

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
    """Return a chunk that follows ``before`` images.

    Raises:
        InvalidInput: no image, more or fewer times than images, or no visual token.
    """
    if isinstance(frames, Mapping) and find_source(frames) is None:
        if time is not None:
            raise InvalidInput("inputs that are made already have their times in them: leave time=")
        return _chunk(model, dict(frames), before)
    images = image_list(frames, "frames")
    if isinstance(frames, Clip) and time is None:
        time = frames.times.tolist()
    times = _times(len(images), time)
    text = "".join(words.of_frame(before + i + 1, at) for i, at in enumerate(times))
    how: Any = {"literals": Literals(processor), "add_special_tokens": False, "nested": False}
    return _chunk(model, encode(model, processor, text, images, **how), before)


def _times(
    images: int, time: int | float | Sequence[int | float] | None
) -> Sequence[int | float] | Sequence[None]:
    if not images:
        raise InvalidInput("no frame was given: see() takes an image, or a list of them.")
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
            "a chunk of a stream is one row of input_ids, [1, tokens], with its pixels; got "
            f"{'none' if ids is None else tuple(getattr(ids, 'shape', ()))}."
        )
    inputs.pop("attention_mask", None)  # there is no padding
    vision = visual_tokens(model.config, ids)
    if vision is None or not bool(vision.any()):
        raise InvalidInput(
            "this chunk has no visual token: the words of a frame need the processor's placeholder "
            "of an image (words=)."
        )
    starts = starts_in_runs(model.config, ids, inputs)
    image, spot = _with_words(image_index(vision, starts), spot_index(vision, starts))
    count = int(image.max()) + 1
    device = input_device(model)
    return Chunk(moved(inputs, model), (image + before).to(device), spot.to(device), count)


def _with_words(
    image: Int[Tensor, "1 t"], spot: Int[Tensor, "1 t"]
) -> tuple[Int[Tensor, "1 t"], Int[Tensor, "1 t"]]:
    """The same of all tokens, with words."""
    last = int(image.max())
    owner = torch.where(image < 0, last, image).flip(-1).cummin(-1).values.flip(-1)
    spot = spot.clone()
    for one in range(last + 1):
        words = (owner == one) & (image < 0)
        size = int((image == one).sum())
        spot[words] = size + torch.arange(int(words.sum()), device=spot.device)
    return owner, spot


def answer(
    session: Session,
    processor: Any,
    branch: DynamicCache,
    ids: Int[Tensor, "1 t"],
    options: Mapping[str, Any],
) -> Answer:
    """The answer to a question's tokens; ``branch`` is written to."""
    model = session.model
    finish(branch)
    session.adopt(branch)
    stats = session.stats
    # generate wants ids of all tokens held, and reads those alone that are new
    whole = torch.cat([ids[:, :1].expand(1, branch.get_seq_length()), ids], dim=1)
    output = model.generate(  # type: ignore[operator]
        input_ids=whole,
        attention_mask=torch.ones_like(whole),
        return_dict_in_generate=False,
        **{CACHE: branch},
        **generate_options(model, processor, options, whole.shape[1]),
    )
    return to_answer(model, processor, output[0, whole.shape[1] :], options, stats)
