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

from foveate.errors import UnsupportedModel
from foveate.prompts.inputs import TOKEN_TYPES, encode, moved
from foveate.prompts.messages import Message, media_of
from foveate.prompts.special_tokens import anchor, has_first_token, tokenizer_of
from foveate.prompts.template import Wording

_IDS = "input_ids"
_NOT_PASSED_ON = (_IDS, "attention_mask", *TOKEN_TYPES)
"""Outputs of a processor that ``generate`` gets for the whole conversation."""


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
        self.types = {name: inputs[name][:, cut:] for name in TOKEN_TYPES if name in inputs}
        self.given = {name: x for name, x in inputs.items() if name not in _NOT_PASSED_ON}


def read(
    model: PreTrainedModel, wording: Wording, text: str, new: Sequence[Message], begins: bool
) -> NewPart:
    """Return the tokens and pixels of a text and of the images and videos of new messages.

    Args:
        model: the model that will read them.
        wording: of the conversation; it knows the processor.
        text: as the template renders it.
        new: the messages of this turn alone.
        begins: whether nothing stands before it. Otherwise nothing is put in front, such as the
            token with which texts begin.

    Raises:
        InvalidInput: the processor cannot read it, or the model cannot see its images.
        UnsupportedModel: its images are read through cross-attention; or a release of transformers
            masks a later one wrongly.
    """
    tokenizer, literals = tokenizer_of(wording.processor), wording.literals
    front, cut = ("", []) if begins else anchor(tokenizer, literals.split(text)[0])
    images, videos = media_of(new)
    inputs = encode(
        model,
        wording.processor,
        front + text,
        images,
        videos,
        literals=literals,
        add_special_tokens=None if begins and not has_first_token(tokenizer, text) else False,
    )
    if "cross_attention_mask" in inputs:
        raise UnsupportedModel(
            f"a {type(model).__name__} reads images through cross-attention, whose masks are of a "
            "whole conversation, so a chat cannot go on from a part of one. Use generate() in a "
            "foveate.compress block."
        )
    if images and not begins and "token_type_ids" in inputs:
        _check_sees_images_later(model)
    return NewPart(moved(inputs, model), len(cut))


def _check_sees_images_later(model: PreTrainedModel) -> None:
    """Tokens of an image see each other in both directions (Gemma 3), and on a cache did not."""
    if tuple(map(int, RELEASE.split(".")[:2])) < (5, 23):
        raise UnsupportedModel(
            f"transformers {RELEASE} masks a new image in a later turn wrongly in "
            f"a {type(model).__name__}: update it to 5.23 or newer, or show all images in the "
            "first turn."
        )
