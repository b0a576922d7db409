"""What ``generate`` is asked by chats and streams, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedModel

from foveate.backends.hf import Stats
from foveate.backends.hf.follow_up import ends
from foveate.errors import InvalidInput
from foveate.prompts.special_tokens import tokenizer_of

LONGEST = 256
"""Tokens of an answer where neither the caller nor the model's generation settings say."""

_OURS = (
    "input_ids",
    "inputs",
    "inputs_embeds",
    "attention_mask",
    "past_key_values",
    "cache",
    "cache_implementation",
    "use_cache",
    "return_dict_in_generate",
    "assistant_model",
    "custom_generate",
)
_SEVERAL = ("num_beams", "num_return_sequences")


class Answer(NamedTuple):
    """What the model said. ``ids`` [n] are its tokens as they were generated, without the one that
    ends it; ``ended`` says why it ended: "eos", "length" (or a stop string), or "stopped".
    ``stats`` are those of the last compression before it.
    """

    text: str
    ids: Int[Tensor, "n"]
    ended: Literal["eos", "length", "stopped"]
    stats: Stats


def check(
    model: PreTrainedModel, options: Mapping[str, Any], by: str, several: str, *ours: str
) -> None:
    """Raises InvalidInput for arguments of ``generate`` that ``by`` ("a chat") decides, or cannot
    have; ``several`` says what to do for several answers.
    """
    for name in (*_OURS, *ours):
        if options.get(name) is not None:
            raise InvalidInput(f"{name}=... is not for {by}, which sees to it: leave it out.")
    settings = options.get("generation_config") or model.generation_config
    for name in _SEVERAL:
        count = options.get(name, getattr(settings, name, None)) or 1
        if count > 1:
            raise InvalidInput(
                f"{name}={count}: {by} has one answer at a time, in one cache. {several}"
            )


def length(model: PreTrainedModel, options: Mapping[str, Any]) -> dict[str, int]:
    """The most tokens of an answer; transformers by itself counts what is held in."""
    own = options.get("generation_config") or model.generation_config
    longest = getattr(own, "max_new_tokens", None) or options.get("max_length")
    return {} if longest else {"max_new_tokens": LONGEST}


def said(
    model: PreTrainedModel,
    processor: Any,
    new: Int[Tensor, "n"],
    options: Mapping[str, Any],
    stats: Stats,
    stopped: bool = False,
) -> Answer:
    """The answer whose tokens, with the one that may end it, are ``new``."""
    eos = len(new) > 0 and int(new[-1]) in _ends(model, options)
    ids = new[:-1] if eos else new
    text: str = tokenizer_of(processor).decode(ids, skip_special_tokens=True)
    ended: Literal["eos", "length", "stopped"] = (
        "eos" if eos else "stopped" if stopped else "length"
    )
    return Answer(text.strip(), ids.cpu(), ended, stats)


def _ends(model: PreTrainedModel, options: Mapping[str, Any]) -> set[int]:
    """The tokens that end this answer."""
    given = options.get("eos_token_id")
    if given is None and (settings := options.get("generation_config")) is not None:
        given = settings.eos_token_id
    if given is None:
        return ends(model)
    return set(given) if isinstance(given, list | tuple) else {int(given)}
