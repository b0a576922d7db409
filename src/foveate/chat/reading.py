"""A turn's words and pixels as a model takes them, and the conversation that they go on from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers import __version__ as RELEASE

from foveate.errors import InvalidInput, UnsupportedModel
from foveate.prompts.images import picture
from foveate.prompts.special_tokens import anchor, lacks_first_token, tokenizer_of
from foveate.prompts.template import Message, Wording, parts_of
from foveate.prompts.videos import films

_IDS = "input_ids"
_TOLD = (_IDS, "attention_mask", "video_metadata")
"""Of what a processor returns, what ``generate`` is given otherwise, or not at all."""
_TYPES = ("mm_token_type_ids", "token_type_ids")
"""What processors say of each token; models want it of the whole conversation."""


@dataclass(frozen=True)
class Conversation:
    """What has been said, and what is held of it. Nobody writes to ``cache`` again: a turn goes on
    from a copy.

    ``text`` is all of it in the template's words, the latest answer included, whose message is
    number ``answer``; ``ids`` [1, n] are its tokens, and ``types`` what the processor says of them.
    """

    messages: tuple[Message, ...] = ()
    answer: int = -1
    text: str = ""
    ids: Int[Tensor, "1 n"] = field(
        default_factory=lambda: torch.empty(1, 0, dtype=torch.long, device="cpu")
    )
    types: Mapping[str, Int[Tensor, "1 n"]] = field(default_factory=dict)
    cache: DynamicCache | None = None

    def with_ids(
        self, new: Int[Tensor, "1 m"], types: Mapping[str, Int[Tensor, "1 m"]]
    ) -> tuple[Int[Tensor, "1 n"], dict[str, Int[Tensor, "1 n"]]]:
        """All tokens and types, with new ones; a text's types are 0."""
        old = self.ids.to(new.device)
        longer = {
            name: torch.cat(
                [
                    self.types.get(name, torch.zeros_like(old)),
                    types.get(name, torch.zeros_like(new)),
                ],
                dim=1,
            )
            for name in {**self.types, **types}
        }
        return torch.cat([old, new], dim=1), longer


class NewPart:
    """The tokens and pixels that a turn adds."""

    def __init__(self, inputs: Mapping[str, Any], cut: int):
        self.ids: Int[Tensor, "1 n"] = inputs[_IDS][:, cut:]
        self.types = {name: inputs[name][:, cut:] for name in _TYPES if name in inputs}
        self.given = {name: x for name, x in inputs.items() if name not in (*_TOLD, *_TYPES)}


def read(
    model: PreTrainedModel, wording: Wording, text: str, new: Sequence[Message], begins: bool
) -> NewPart:
    """What a processor makes of a text and of the images and videos that these messages bring.

    Args:
        model: whose device and dtype it is to have.
        wording: of the conversation; it knows the processor.
        text: as the template words it.
        new: the messages of this turn alone.
        begins: whether nothing stands before it. Otherwise nothing is put in front, such as the
            token with which texts begin.

    Raises:
        InvalidInput: the processor cannot read it.
        UnsupportedModel: its images are read through cross-attention; or a release of transformers
            masks a later one wrongly.
    """
    tokenizer = tokenizer_of(wording.processor)
    special = begins and lacks_first_token(tokenizer, text)
    first = wording.literals.split(text)[0]
    front, cut = ("", []) if begins else anchor(tokenizer, first)
    reader = wording.literals.reader(wording.processor)
    parts = [part for message in new for part in parts_of(message)]
    images = [picture(part) for part in parts if part["type"] in ("image", "image_url")]
    pixels: dict[str, Any] = {"images": [images]} if images else {}
    pixels |= films(wording.processor, parts)
    try:
        features = reader(
            text=[front + text], **pixels, return_tensors="pt", add_special_tokens=special
        )
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        said = " ".join(str(error).split())
        raise InvalidInput(
            f"{type(wording.processor).__name__} cannot read this turn: {said}"
        ) from error
    if "cross_attention_mask" in features:
        raise UnsupportedModel(
            f"a {type(model).__name__} reads images through cross-attention, whose masks are of a "
            "whole conversation, so a chat cannot go on from a part of one. Use generate() in a "
            "foveate.compress block."
        )
    if images and not begins and "token_type_ids" in features:
        _check_sees_images_later(model)
    return NewPart({name: moved(value, model) for name, value in features.items()}, len(cut))


def _check_sees_images_later(model: PreTrainedModel) -> None:
    """Tokens of an image see each other in both directions (Gemma 3), and on a cache did not."""
    if tuple(map(int, RELEASE.split(".")[:2])) < (5, 23):
        raise UnsupportedModel(
            f"transformers {RELEASE} masks a new image in a later turn wrongly in "
            f"a {type(model).__name__}: update it to 5.23 or newer, or show all images in the "
            "first turn."
        )


def moved(value: Any, model: PreTrainedModel) -> Any:
    """On the model's device; pixels also in its dtype."""
    if not isinstance(value, Tensor):
        return value
    return value.to(model.device, model.dtype if value.is_floating_point() else value.dtype)
