"""Arguments of ``generate`` for chats, pipelines and streams, and their answers."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from jaxtyping import Int
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel

from foveate.chat.usage import Usage
from foveate.errors import InvalidInput, InvalidParameter
from foveate.hf import Stats
from foveate.hf.layer.support import inner_model
from foveate.hf.model.internals import generation_settings
from foveate.policies.parameters import short_repr
from foveate.prompts.special_tokens import tokenizer_of
from foveate.prompts.template import SET_HERE, check_not_set_here

LONGEST = 256
"""Maximum length of an answer in tokens, unless the caller or the model's settings have one."""

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
"""Arguments that ``generate`` pops from its ``**kwargs``, so that no signature names them."""

_NO_ARGUMENTS = {"self", "args", "kwargs", "model_kwargs", "transformers_version"}

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


class Answer(NamedTuple):
    """Answer of a model.

    ``ids`` [n] are its generated tokens without the end token. ``ended`` is the reason of its end:
    "eos", "length" (or a stop string), or "stopped". ``stats`` are those of the last compression
    before it. ``usage`` are its tokens, seconds and bytes; all are 0 if the caller measures none.
    """

    text: str
    ids: Int[Tensor, "n"]
    ended: Literal["eos", "length", "stopped"]
    stats: Stats
    usage: Usage

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Answer({short_repr(self.text)}, {len(self.ids)} tokens, {self.ended})"


def is_decided(name: str) -> bool:
    """Return True for an argument of ``generate`` that the cache or the messages determine."""
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
        call: the call in the user's code, such as "say(...)".
        own: parameters of the call itself, for a suggestion.
        by: the caller, such as "a chat".
        several: the way to get several answers, as a sentence.
        decided: further arguments that the caller decides.
        complete: True if these are all arguments of an answer; False for those of a constructor,
            which a call may override.

    Raises:
        InvalidInput: an argument that the caller decides, or several answers, also through a
            ``generation_config`` or, if ``complete``, the model's own.
        InvalidParameter: a name that neither the call nor ``generate`` takes; the message has the
            closest known name, or where the argument belongs.
    """
    for name, value in options.items():
        if value is not None and (name in decided or is_decided(name)):
            raise InvalidInput(f"{name}=... is set by {by} itself: leave it out.")
    _refuse_several({name: options.get(name) for name in _SEVERAL}, by, several)
    settings = settings_of(
        model, options
    )  # must follow: transformers would raise a less clear error here
    config = settings if complete else options.get("generation_config")
    merged = {f"generation_config.{name}": getattr(config, name, None) for name in _SEVERAL}
    _refuse_several(merged, by, several)
    if names := {name for name in options if not is_decided(name)}:
        known = generate_arguments(model)
        for name in sorted(names - known):
            raise InvalidParameter(
                f"{name}=... is no argument of {call} or of generate(). "
                f"{_suggestion(name, own, known, processor)}"
            )


def _refuse_several(counts: Mapping[str, int | None], by: str, several: str) -> None:
    for name, count in counts.items():
        if (count or 1) > 1:
            raise InvalidInput(f"{name}={count}: {by} gives one answer at a time. {several}")


def generate_options(
    model: PreTrainedModel, processor: Any, options: Mapping[str, Any], tokens: int
) -> dict[str, Any]:
    """Return the arguments for an answer that follows ``tokens`` others.

    They are the ``options``, a limit where they have none, and the tokenizer for ``stop_strings``.
    The model's own ``max_length`` is ignored: no conversation could go on beyond it.

    Raises:
        InvalidInput: the caller's ``max_length``, which counts the whole conversation, is reached.
    """
    settings = settings_of(model, options)
    arguments = dict(options)
    limit = options.get("max_length")
    if limit is None:
        limit = getattr(options.get("generation_config"), "max_length", None)
    if settings.max_new_tokens is None and limit is None:
        arguments["max_new_tokens"] = LONGEST
    elif settings.max_new_tokens is None and limit is not None and limit <= tokens:
        raise InvalidInput(
            f"max_length={limit} counts the whole conversation, which has {tokens} tokens already: "
            "give max_new_tokens, which counts the answer alone."
        )
    if settings.stop_strings and options.get("tokenizer") is None:
        arguments["tokenizer"] = tokenizer_of(processor)
    return arguments


def to_answer(
    model: PreTrainedModel,
    processor: Any,
    new: Int[Tensor, "n"],
    options: Mapping[str, Any],
    stats: Stats,
    stopped: bool = False,
) -> Answer:
    """Decode the generated tokens ``new``, with or without an end token, into an answer."""
    eos = len(new) > 0 and int(new[-1]) in _end_tokens(model, options)
    ids = new[:-1] if eos else new
    text: str = tokenizer_of(processor).decode(ids, skip_special_tokens=True)
    ended: Literal["eos", "length", "stopped"] = (
        "eos" if eos else "stopped" if stopped else "length"
    )
    return Answer(text.strip(), ids.cpu(), ended, stats, Usage())


def _end_tokens(model: PreTrainedModel, options: Mapping[str, Any]) -> set[int]:
    """Return the ids of the end tokens in effect."""
    eos = settings_of(model, options).eos_token_id
    if eos is None:
        return set()
    return set(eos) if isinstance(eos, list | tuple) else {int(eos)}


def generate_arguments(model: nn.Module) -> set[str]:
    """Return the names that this model's ``generate`` takes on the installed transformers.

    They are fields of its configuration, its own parameters, and those of the model's ``forward``,
    without those that the cache or the messages determine.
    """
    inner: Any = inner_model(model)
    names: set[str] = set()
    default_config = GenerationConfig()  # type: ignore[no-untyped-call]
    for config in (default_config, getattr(inner, "generation_config", None)):
        names |= {*vars(config)} if config is not None else set()
    functions = [GenerationMixin.generate]
    functions += [getattr(inner, name) for name in ("generate", "forward") if hasattr(inner, name)]
    for function in functions:
        names |= {*inspect.signature(function).parameters}
    names |= {*_TAKEN_OUT}
    names -= _NO_ARGUMENTS | DECIDED
    return {name for name in names if not name.startswith(("_", *OF_PIXELS))}


def _suggestion(name: str, own: Iterable[str], known: set[str], processor: Any) -> str:
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
        InvalidParameter: the template reads no such name; or ``arguments`` is no mapping.
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
    """Return the names in a processor's chat template, and the parameters that
    ``apply_chat_template`` takes.
    """
    names: set[str] = set()
    for reader in (processor, tokenizer_of(processor)):
        template = getattr(reader, "chat_template", None)
        names |= {*_IDENTIFIER.findall(str(template))} if template else set()
        if (apply := getattr(reader, "apply_chat_template", None)) is not None:
            names |= {*inspect.signature(apply).parameters}
    return names - _NO_ARGUMENTS


def with_defaults(defaults: Mapping[str, Any], call: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``defaults`` overridden by the arguments of a ``call`` of ``generate``.

    A default is dropped where the call's ``generation_config`` or ``max_length`` sets the same,
    because ``generate`` would rank the default higher.
    """
    config = call.get("generation_config")
    overridden = {name for name in defaults if getattr(config, name, None) is not None}
    if call.get("max_length") is not None or getattr(config, "max_length", None) is not None:
        overridden.add("max_new_tokens")
    return {**{k: v for k, v in defaults.items() if k not in overridden}, **call}


def _closest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=cutoff)
    return f"Did you mean {close[0]!r}? " if close else ""
