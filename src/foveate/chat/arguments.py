"""Names of the arguments that chats, pipelines and streams take: every other one is refused."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from transformers import GenerationConfig, GenerationMixin

from foveate.chat.asking import DECIDED, OF_PIXELS, is_decided
from foveate.errors import InvalidParameter
from foveate.hf.layer.support import inner_model
from foveate.prompts.special_tokens import tokenizer_of
from foveate.prompts.template import SET_HERE, check_not_set_here

_TAKEN_OUT = ("tokenizer", "assistant_tokenizer")
"""Arguments that ``generate`` takes out of its ``**kwargs``, so that no signature names them."""

_NO_ARGUMENTS = {"self", "args", "kwargs", "model_kwargs", "transformers_version"}

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


_NOT_TOLD = ("_", *OF_PIXELS)


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
    return {name for name in names - _NO_ARGUMENTS - DECIDED if not name.startswith(_NOT_TOLD)}


def check_arguments(
    call: str, arguments: Iterable[str], model: nn.Module, processor: Any, own: Iterable[str] = ()
) -> None:
    """Refuse names that neither ``call`` ("Chat(...)"), whose ``own`` parameters these are, nor
    ``generate`` takes.

    Raises:
        InvalidParameter: with the closest known name, or where the argument belongs.
    """
    if not (names := {name for name in arguments if not is_decided(name)}):
        return
    known = generate_arguments(model)
    for name in sorted(names - known):
        raise InvalidParameter(
            f"{name}=... is no argument of {call}, nor of generate(). "
            f"{_way_out(name, own, known, processor)}"
        )


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
