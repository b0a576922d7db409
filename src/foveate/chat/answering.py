"""One turn: the new part is read onto a copy of the cache, compressed with it, and answered."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from threading import Event, Lock
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from foveate.backends.hf import Session, Stats, compress
from foveate.backends.hf.asked import ends
from foveate.chat.reading import Conversation, NewPart
from foveate.core.policy import Policy
from foveate.errors import InvalidInput

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
    "streamer",
    "return_dict_in_generate",
    "assistant_model",
    "custom_generate",
)
_SEVERAL = ("num_beams", "num_return_sequences")


_locks: WeakKeyDictionary[PreTrainedModel, Lock] = WeakKeyDictionary()
"""A model is in one ``compress`` block at a time: chats that share one take turns."""


class Answer(NamedTuple):
    """What the model said. ``ids`` [n] are its tokens as they were generated, without the one that
    ends it; ``ended`` says why it ended: "eos", "length" (or a stop string), or "stopped".
    """

    text: str
    ids: Int[Tensor, "n"]
    ended: Literal["eos", "length", "stopped"]
    stats: Stats


class Answered(NamedTuple):
    """A turn's answer, and all tokens, types and pairs after it."""

    answer: Answer
    ids: Int[Tensor, "1 n"]
    types: Mapping[str, Int[Tensor, "1 n"]]
    cache: DynamicCache


class Stops(StoppingCriteria):
    """Ends an answer after the token that is being made when somebody says so."""

    def __init__(self, said: Event):
        self._said = said

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        return torch.full(
            (len(input_ids),), self._said.is_set(), dtype=torch.bool, device=input_ids.device
        )


class Answerer(NamedTuple):
    """A model that answers, under a policy."""

    model: PreTrainedModel
    processor: Any
    policy: Policy

    def block(self) -> Session:
        """Around one turn."""
        return compress(self.model, self.policy, tokenizer=self.processor)

    def lock(self) -> Lock:
        """What a chat holds while it uses the model."""
        return _locks.setdefault(self.model, Lock())

    def check(self, asked: Mapping[str, Any]) -> None:
        """Raises InvalidInput for arguments of ``generate`` that a chat decides, or cannot have."""
        for name in _OURS:
            if asked.get(name) is not None:
                raise InvalidInput(f"{name}=... is not for a chat, which sees to it: leave it out.")
        settings = asked.get("generation_config") or self.model.generation_config
        for name in _SEVERAL:
            count = asked.get(name, getattr(settings, name, None)) or 1
            if count > 1:
                raise InvalidInput(
                    f"{name}={count}: a chat goes on from one answer, in one cache. For several "
                    "answers fork() it, or use generate() in a foveate.compress block."
                )

    def answer(
        self,
        before: Conversation,
        new: NewPart,
        asked: Mapping[str, Any],
        stop: Event,
        streamer: Any = None,
        rearm: bool = True,
    ) -> Answered:
        """The answer to a turn; ``asked`` is what ``generate`` is to get besides. Without ``rearm``
        the new part is kept whole.
        """
        ids, types = before.with_ids(new.ids, new.types)
        criteria = StoppingCriteriaList([*(asked.get("stopping_criteria") or ()), Stops(stop)])
        with self.block() as session:
            cache = copy.deepcopy(before.cache)
            if cache is not None and rearm:
                session.rearm(cache)
            output = self.model.generate(  # type: ignore[operator]
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                **types,
                **new.given,
                past_key_values=cache,
                streamer=streamer,
                return_dict_in_generate=False,
                **{**_length(self.model, asked), **asked, "stopping_criteria": criteria},
            )
            cache, stats = session.cache, session.stats
        said = output[0, ids.shape[1] :]
        eos = len(said) > 0 and int(said[-1]) in _ends(self.model, asked)
        said = said[:-1] if eos else said
        ended = "eos" if eos else "stopped" if stop.is_set() else "length"
        answer = Answer(_text(self.processor, said), said.cpu(), ended, stats)  # type: ignore[arg-type]
        told = Conversation(ids=ids, types=types).with_ids(said[None], {})
        return Answered(answer, *told, cache)

    def read(self, before: Conversation, new: NewPart) -> Answered:
        """Reads a part that is not to be answered."""
        ids, types = before.with_ids(new.ids, new.types)
        read = self.answer(before, new, {"max_new_tokens": 1, "do_sample": False}, Event())
        return read._replace(ids=ids, types=types)


def _length(model: PreTrainedModel, asked: Mapping[str, Any]) -> dict[str, int]:
    """The most tokens of an answer; transformers by itself counts the conversation in."""
    own = asked.get("generation_config") or model.generation_config
    told = getattr(own, "max_new_tokens", None) or asked.get("max_length")
    return {} if told else {"max_new_tokens": LONGEST}


def _ends(model: PreTrainedModel, asked: Mapping[str, Any]) -> set[int]:
    """The tokens that end this answer."""
    given = asked.get("eos_token_id")
    if given is None and (settings := asked.get("generation_config")) is not None:
        given = settings.eos_token_id
    if given is None:
        return ends(model)
    return set(given) if isinstance(given, list | tuple) else {int(given)}


def _text(processor: Any, ids: Tensor) -> str:
    tokenizer = getattr(processor, "tokenizer", processor)
    text: str = tokenizer.decode(ids, skip_special_tokens=True)
    return text.strip()
