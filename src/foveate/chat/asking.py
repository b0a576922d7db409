"""What ``generate`` is asked by chats and streams, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from jaxtyping import Int
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from foveate.errors import InvalidInput
from foveate.hf import Stats
from foveate.hf.layer.support import inner_model
from foveate.hf.model.internals import generation_settings
from foveate.prompts.special_tokens import tokenizer_of

LONGEST = 256
"""Tokens of an answer where neither the caller nor the model's ``max_new_tokens`` says."""

GREEDY: Mapping[str, Any] = {"do_sample": False, "num_beams": 1, "num_return_sequences": 1}
"""Arguments for reading a text without an answer, whatever the model's own settings are."""

DECIDED = {
    "input_ids",
    "inputs",
    "inputs_embeds",
    "attention_mask",
    "position_ids",
    "cache_position",
    "labels",
    "past_key_values",
    "cache",
    "cache_implementation",
    "use_cache",
    "return_dict_in_generate",
    "assistant_model",
    "custom_generate",
}
OF_PIXELS = ("pixel_", "image_", "video_", "token_type_ids", "mm_token_type_ids")
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


def is_decided(name: str) -> bool:
    """Return whether an argument of ``generate`` follows from the cache or the messages."""
    return name in DECIDED or name.startswith(OF_PIXELS)


def settings_of(model: PreTrainedModel, options: Mapping[str, Any]) -> GenerationConfig:
    """Return the settings that ``generate`` runs with under these arguments."""
    return generation_settings(inner_model(model), options)


def check(
    model: PreTrainedModel,
    options: Mapping[str, Any],
    by: str,
    several: str,
    *ours: str,
    complete: bool = True,
) -> None:
    """Refuse arguments of ``generate`` that ``by`` ("a chat") decides, or cannot have; ``several``
    says what to do for several answers. Arguments that are not ``complete`` are those of a
    constructor, which the ones of a call may override.

    Raises:
        InvalidInput: one of these, also where a ``generation_config`` or, of complete arguments,
            the model's own says so.
    """
    for name, value in options.items():
        if value is not None and (name in ours or is_decided(name)):
            raise InvalidInput(f"{name}=... is not for {by}, which sees to it: leave it out.")
    _refuse_several({name: options.get(name) for name in _SEVERAL}, by, several)
    settings = settings_of(model, options)  # transformers refuses some of the same with less words
    config = settings if complete else options.get("generation_config")
    merged = {f"generation_config.{name}": getattr(config, name, None) for name in _SEVERAL}
    _refuse_several(merged, by, several)


def _refuse_several(counts: Mapping[str, int | None], by: str, several: str) -> None:
    for name, count in counts.items():
        if (count or 1) > 1:
            raise InvalidInput(
                f"{name}={count}: {by} has one answer at a time, in one cache. {several}"
            )


def generate_options(
    model: PreTrainedModel, processor: Any, options: Mapping[str, Any], tokens: int
) -> dict[str, Any]:
    """Return the arguments for an answer after ``tokens`` others: those given, a limit where they
    set none, and the tokenizer by which ``generate`` looks for ``stop_strings``. The model's own
    ``max_length`` is no limit: a conversation would end there for good.

    Raises:
        InvalidInput: the caller's ``max_length``, which counts the whole conversation, is reached.
    """
    settings = settings_of(model, options)
    given = dict(options)
    limit = options.get("max_length")
    if limit is None:
        limit = getattr(options.get("generation_config"), "max_length", None)
    if settings.max_new_tokens is None and limit is None:
        given["max_new_tokens"] = LONGEST
    elif settings.max_new_tokens is None and limit is not None and limit <= tokens:
        raise InvalidInput(
            f"max_length={limit} counts the whole conversation, which has {tokens} tokens already: "
            "give max_new_tokens, which counts the answer alone."
        )
    if settings.stop_strings and options.get("tokenizer") is None:
        given["tokenizer"] = tokenizer_of(processor)
    return given


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
    """Return the tokens that end this answer."""
    eos = settings_of(model, options).eos_token_id
    if eos is None:
        return set()
    return set(eos) if isinstance(eos, list | tuple) else {int(eos)}
