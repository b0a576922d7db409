"""What all plug-ins do: answer a conversation under a policy."""

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
    """A text, and what it took. Bytes are those of the cache right after the compression, and of
    the stock cache at the same place; ``seconds`` are those of prompt and answer together.
    """

    text: str
    prompt_tokens: int
    tokens: int
    kv_bytes: int
    kv_bytes_full: int
    seconds: float


class PluginAnswerer:
    """A model that answers one prompt after the other under one policy.

    Args:
        pretrained: the model, as :func:`foveate.loading.model.load` takes it.
        method: a spec; it may stand in quotes, which guard its commas where arguments are parsed.
        device: where the model goes, "cpu" or "cuda:0"; by default to the GPU if there is one.
        trust_remote_code: whether Python code that the model brings along runs.
        strict: whether a budget below what is always kept is refused, and not raised to that.

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
        """Greedy, unless ``options``, which go to ``generate``, say otherwise.

        Args:
            messages: a conversation, as :func:`foveate.prompts.prompt.read_chat` takes it.
            tokens: the most tokens of the answer.
            until: texts that end the answer; it is cut before the first.
            **options: such as ``temperature`` or ``num_beams``.
        """
        prompt = read_chat(self.loaded, messages)
        model: Any = self.loaded.model
        block = compress(model, self.policy, tokenizer=self.loaded.tokenizer, strict=self.strict)
        with block as session:
            start = time.perf_counter()
            done = model.generate(**prompt.inputs, max_new_tokens=tokens, **_sampling(options))
            ids = done[0, prompt.tokens :].tolist()  # waits for the device
            seconds, stats = time.perf_counter() - start, session.stats
        said = self.loaded.tokenizer.decode(ids, skip_special_tokens=True)
        return PluginAnswer(
            text=_before(said, until).strip(),
            prompt_tokens=prompt.tokens,
            tokens=len(ids),
            kv_bytes=stats.bytes_after,
            kv_bytes_full=stats.bytes_before,
            seconds=seconds,
        )


def unquoted(text: str) -> str:
    """The text without the quotes around it, if there are any."""
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in QUOTES else text


def kv_ratio(answers: Sequence[PluginAnswer]) -> float:
    """The bytes of all compressed caches, to those of the stock ones."""
    return sum(one.kv_bytes for one in answers) / sum(one.kv_bytes_full for one in answers)


def _sampling(options: dict[str, Any]) -> dict[str, Any]:
    """Greedy, unless there is a temperature above 0 and ``do_sample`` is not false; a model's own
    settings do not count then.
    """
    given = {"num_beams": 1, **options}
    if (given.get("temperature") or 0) > 0 and given.get("do_sample", True):
        return {**given, "do_sample": True}
    return {**given, "do_sample": False, "temperature": None, "top_p": None, "top_k": None}


def _before(text: str, ends: Iterable[str]) -> str:
    for end in ends:
        text = text.split(end)[0] if end else text
    return text
