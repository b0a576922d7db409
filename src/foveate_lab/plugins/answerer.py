"""Answering of a conversation under a policy, shared by all plug-ins."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from foveate.compression.composition import policy as policy_of
from foveate.hf import compress
from foveate.loading.model import load
from foveate.prompts.messages import Message
from foveate.prompts.prompt import read_chat

QUOTES = ("'", '"')


class PluginAnswer(NamedTuple):
    """Answer with its cost.

    Bytes are those of the cache right after compression, and of the stock cache at that point;
    ``seconds`` cover prompt and answer.
    """

    text: str
    prompt_tokens: int
    tokens: int
    kv_bytes: int
    kv_bytes_full: int
    seconds: float


class PluginAnswerer:
    """Model that answers prompts one by one under one policy.

    Args:
        pretrained: the model, as :func:`foveate.loading.model.load` takes it.
        method: a spec; it may be in quotes, which protect its commas in parsed arguments.
        device: device of the model, "cpu" or "cuda:0"; by default the GPU if there is one.
        trust_remote_code: run Python code that comes with the model.
        strict: refuse a budget below what is always kept, instead of raising it to that.

    Raises:
        FoveateError: no such model or method, or a budget that cannot be met.
    """

    def __init__(
        self,
        pretrained: str,
        method: str,
        device: str | None = None,
        trust_remote_code: bool = False,
        strict: bool = False,
    ):
        self.policy, self.strict = policy_of(unquoted(method)), strict
        self.loaded = load(pretrained, trust_remote_code)
        if device is not None:
            self.loaded.model.to(device)  # type: ignore[arg-type]

    def __call__(
        self, messages: Sequence[Message], tokens: int, until: Iterable[str] = (), **options: Any
    ) -> PluginAnswer:
        """Answer a conversation: greedily, unless ``options`` change it.

        Args:
            messages: a conversation, as :func:`foveate.prompts.prompt.read_chat` takes it.
            tokens: maximum tokens of the answer.
            until: stop strings; the answer is cut before the first.
            **options: arguments of ``generate``, such as ``temperature`` or ``num_beams``.
        """
        prompt = read_chat(self.loaded, messages)
        model: Any = self.loaded.model
        context = compress(model, self.policy, tokenizer=self.loaded.tokenizer, strict=self.strict)
        with context as session:
            start = time.perf_counter()
            done = model.generate(**prompt.inputs, max_new_tokens=tokens, **_sampling(options))
            ids = done[0, prompt.tokens :].tolist()  # waits for the device
            seconds, stats = time.perf_counter() - start, session.stats
        text = self.loaded.tokenizer.decode(ids, skip_special_tokens=True)
        return PluginAnswer(
            text=_before(text, until).strip(),
            prompt_tokens=prompt.tokens,
            tokens=len(ids),
            kv_bytes=stats.bytes_after,
            kv_bytes_full=stats.bytes_before,
            seconds=seconds,
        )


def unquoted(text: str) -> str:
    """Strip quotes around a text, if any."""
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in QUOTES else text


def kv_ratio(answers: Sequence[PluginAnswer]) -> float:
    """Return the bytes of all compressed caches over those of the stock caches."""
    return sum(a.kv_bytes for a in answers) / sum(a.kv_bytes_full for a in answers)


def _sampling(options: dict[str, Any]) -> dict[str, Any]:
    """Complete generation options: greedy unless the temperature is above 0 and sampling not off.

    Greedy options override the model's own generation settings.
    """
    settings = {"num_beams": 1, **options}
    if (settings.get("temperature") or 0) > 0 and settings.get("do_sample", True):
        return {**settings, "do_sample": True}
    return {**settings, "do_sample": False, "temperature": None, "top_p": None, "top_k": None}


def _before(text: str, ends: Iterable[str]) -> str:
    for end in ends:
        text = text.split(end)[0] if end else text
    return text
