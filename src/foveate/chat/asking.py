"""Arguments of ``generate`` that chats, pipelines and streams take, and its answers."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from jaxtyping import Int
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel

from foveate.errors import InvalidInput, InvalidParameter
from foveate.hf import Stats
from foveate.hf.layer.support import inner_model
from foveate.hf.model.internals import generation_settings
from foveate.prompts.special_tokens import tokenizer_of
from foveate.prompts.template import SET_HERE, check_not_set_here

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
_TAKEN_OUT = ("tokenizer", "assistant_tokenizer")
"""Arguments that ``generate`` takes out of its ``**kwargs``, so that no signature names them."""

_NO_ARGUMENTS = {"self", "args", "kwargs", "model_kwargs", "transformers_version"}

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


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
    processor: Any,
    options: Mapping[str, Any],
    call: str,
    own: Iterable[str] = (),
    *,
    by: str,
    several: str,
    decided: Iterable[str] = (),
    complete: bool = True,
) -> None:
    """Refuse arguments of ``generate`` that the caller decides or cannot have, and unknown ones.

    Args:
        model: the model that generates.
        processor: its processor or tokenizer.
        options: the arguments.
        call: what they were given to, such as "say(...)".
        own: parameters of the call itself, for a suggestion.
        by: the caller, such as "a chat".
        several: what to do for several answers.
        decided: further arguments that the caller decides.
        complete: whether these are all arguments of an answer, and not those of a constructor,
            which the ones of a call may override.

    Raises:
        InvalidInput: an argument that is decided, or several answers, also where a
            ``generation_config`` or, of complete arguments, the model's own says so.
        InvalidParameter: a name that neither the call nor ``generate`` takes, with the closest
            known name, or where the argument belongs.
    """
    for name, value in options.items():
        if value is not None and (name in decided or is_decided(name)):
            raise InvalidInput(f"{name}=... is not for {by}, which sees to it: leave it out.")
    _refuse_several({name: options.get(name) for name in _SEVERAL}, by, several)
    settings = settings_of(model, options)  # transformers refuses some of the same with less words
    config = settings if complete else options.get("generation_config")
    merged = {f"generation_config.{name}": getattr(config, name, None) for name in _SEVERAL}
    _refuse_several(merged, by, several)
    if names := {name for name in options if not is_decided(name)}:
        known = generate_arguments(model)
        for name in sorted(names - known):
            raise InvalidParameter(
                f"{name}=... is no argument of {call}, nor of generate(). "
                f"{_way_out(name, own, known, processor)}"
            )


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


def generate_arguments(model: nn.Module) -> set[str]:
    """Return the names that this model's ``generate`` takes on the installed transformers: fields
    of its configuration, its own parameters, and those of the model's ``forward``, without what
    follows from the cache or the messages.
    """
    inner: Any = inner_model(model)
    names: set[str] = set()
    plain = GenerationConfig()  # type: ignore[no-untyped-call]
    for config in (plain, getattr(inner, "generation_config", None)):
        names |= {*vars(config)} if config is not None else set()
    functions = [GenerationMixin.generate]
    functions += [getattr(inner, name) for name in ("generate", "forward") if hasattr(inner, name)]
    for function in functions:
        names |= {*inspect.signature(function).parameters}
    names |= {*_TAKEN_OUT}
    names -= _NO_ARGUMENTS | DECIDED
    return {name for name in names if not name.startswith(("_", *OF_PIXELS))}


def _way_out(name: str, own: Iterable[str], known: set[str], processor: Any) -> str:
    if name == "budget":
        return "A budget is part of the policy: give policy='snapkv:budget=64MB'."
    if close := _closest(name, own, cutoff=0.8):
        return close
    if name in template_arguments(processor):
        return f"The chat template takes it: give template_kwargs={{{name!r}: ...}}."
    close = _closest(name, {*own, *known})
    return f"{close}Arguments of the chat template go in template_kwargs={{...}}."


def check_template_arguments(arguments: Mapping[str, Any], processor: Any) -> None:
    """Refuse template arguments that the chat template would ignore, or that Foveate gives it.

    Raises:
        InvalidParameter: with the closest name that the template reads; or no mapping.
    """
    if not isinstance(arguments, Mapping):
        raise InvalidParameter(
            f"template_kwargs={arguments!r:.80} is a {type(arguments).__name__}: give a dictionary."
        )
    check_not_set_here(arguments)
    known = template_arguments(processor) - {*SET_HERE}
    for name in arguments:
        if name not in known:
            raise InvalidParameter(
                f"template_kwargs={{{name!r}: ...}}: this chat template reads no {name!r}, so it "
                f"would be ignored. {_closest(name, known)}Leave it out."
            )


def template_arguments(processor: Any) -> set[str]:
    """Return the names that a processor's chat template may read, and the parameters of its
    ``apply_chat_template``.
    """
    names: set[str] = set()
    for reader in (processor, tokenizer_of(processor)):
        template = getattr(reader, "chat_template", None)
        names |= {*_IDENTIFIER.findall(str(template))} if template else set()
        if (apply := getattr(reader, "apply_chat_template", None)) is not None:
            names |= {*inspect.signature(apply).parameters}
    return names - _NO_ARGUMENTS


def with_defaults(defaults: Mapping[str, Any], call: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``generate`` arguments of a call over those given earlier, also where ``generate``
    itself ranks the earlier ones higher: above a ``generation_config``, or above ``max_length``.
    """
    config = call.get("generation_config")
    overridden = {name for name in defaults if getattr(config, name, None) is not None}
    if call.get("max_length") is not None or getattr(config, "max_length", None) is not None:
        overridden.add("max_new_tokens")
    return {**{k: v for k, v in defaults.items() if k not in overridden}, **call}


def _closest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=cutoff)
    return f"Did you mean {close[0]!r}? " if close else ""
