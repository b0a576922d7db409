"""Conversation templates of models' authors, where the hub's template words prompts otherwise.

``llava-hf/llava-1.5-*-hf`` puts all images in front of the text and has no system prompt; the
authors' code has one, and leaves images where the text has them. Benchmarks are asked in the
authors' conversation, whichever of both a checkpoint brings: from the hub, converted, or local.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from foveate.errors import InvalidInput
from foveate.loading.model import Loaded
from foveate.prompts.template import chat_template_of, render
from foveate_lab.convert import templates

CONVERSATIONS: Mapping[str, Callable[[str], str]] = {
    "vicuna_v1": templates.vicuna,
    "llava_v1": templates.llava_v1,
    "llava_llama_2": templates.llava_llama_2,
    "vlmevalkit": templates.vlmevalkit_llava,
    "internlm2-chat": templates.intern_llava,
    "internvl2_5": templates.intern_2_5,
}
"""Templates by name, each a function of the image token; all but ``vlmevalkit`` are called as in
the authors' conversation.py.
"""
_PROBE = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}]
_CHATML_PROBE = "<|im_start|>user\n<image>\n?<|im_end|>\n<|im_start|>assistant"
_VICUNA_PROBE = "USER: <image>\n? ASSISTANT:"


class Family(NamedTuple):
    """Models that one team released together, known by what their chat templates render.

    ``model_type`` and ``text_type`` are those of transformers' configurations, ``renderings`` the
    templates in use: a text, or the name of the template in :mod:`foveate_lab.convert.templates`.
    ``default`` is the authors' conversation where a benchmark names no other.
    """

    model_type: str
    text_type: str
    renderings: tuple[str | Callable[[str], str], ...]
    default: str = ""


FAMILIES: Mapping[str, Family] = {
    "llava-1.5": Family("llava", "llama", (_VICUNA_PROBE, templates.vicuna), "vicuna_v1"),
    "llava-next-vicuna": Family(
        "llava_next",
        "llama",
        (_VICUNA_PROBE, templates.vicuna, templates.llava_v1),
        "vicuna_v1",
    ),
    "internvl-chat-v1.5": Family("internvl", "llama", (templates.intern,)),
    "internvl3": Family("internvl", "qwen2", (_CHATML_PROBE,), "internvl2_5"),
}


def in_conversation(loaded: Loaded, conversations: Mapping[str, str]) -> tuple[Loaded, str]:
    """Return a model whose prompts are worded as its authors' code does, and the conversation.

    Args:
        loaded: the model; it keeps its own processor.
        conversations: a benchmark's conversations by family, in place of the family's default.

    Returns:
        The same model and "" where its own chat template words prompts.
    """
    family = family_of(loaded)
    name = conversation_of(family, conversations)
    if not name:
        return loaded, ""
    reader = copy.copy(loaded.reader)
    reader.chat_template = CONVERSATIONS[name](str(reader.image_token))
    return replace(loaded, reader=reader), name


def conversation_of(family: str, conversations: Mapping[str, str]) -> str:
    """Return the conversation in which a benchmark asks a family, or "" for the model's own."""
    default = FAMILIES[family].default if family in FAMILIES else ""
    return conversations.get(family, default)


def family_of(loaded: Loaded) -> str:
    """Return the family whose chat template a model has, or "" for any other template."""
    config: Any = loaded.model.config
    text = getattr(config, "text_config", None)
    types = (config.model_type, getattr(text, "model_type", ""))
    likely = [
        name for name, family in FAMILIES.items() if (family.model_type, family.text_type) == types
    ]
    if not likely or not loaded.sees or not chat_template_of(loaded.reader):
        return ""
    rendered = _rendered(loaded.reader)
    for name in likely:
        for known in FAMILIES[name].renderings:
            if rendered == (known if isinstance(known, str) else _probed(loaded.reader, known)):
                return name
    return ""


def _probed(reader: Any, template: Callable[[str], str]) -> str:
    """Return what a template makes of the probe."""
    other = copy.copy(reader)
    other.chat_template = template(str(reader.image_token))
    return _rendered(other)


def _rendered(reader: Any) -> str:
    """Return what a processor's chat template makes of the probe, "" where it refuses it."""
    try:
        text = render(reader, _PROBE)
    except InvalidInput:
        return ""
    return text.replace(str(getattr(reader, "image_token", "")), "<image>").strip()
