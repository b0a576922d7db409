"""One turn: the new part is read onto a copy of the cache, compressed with it, and answered."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from threading import Event, Lock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from foveate.backends.hf import Session, compress
from foveate.chat.asking import Answer, check, length, said
from foveate.chat.reading import Conversation, NewPart
from foveate.core.policy import Policy

_locks: WeakKeyDictionary[PreTrainedModel, Lock] = WeakKeyDictionary()
"""A model is in one ``compress`` block at a time: chats that share one take turns."""


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

    def check(self, options: Mapping[str, Any]) -> None:
        """Raises InvalidInput for arguments of ``generate`` that a chat decides, or cannot have."""
        several = "For several fork() it, or use generate() in a foveate.compress block."
        check(self.model, options, "a chat", several, "streamer")

    def answer(
        self,
        before: Conversation,
        new: NewPart,
        options: Mapping[str, Any],
        stop: Event,
        streamer: Any = None,
        rearm: bool = True,
    ) -> Answered:
        """The answer to a turn; ``options`` are what ``generate`` is to get besides. Without
        ``rearm`` the new part is kept whole.
        """
        ids, types = before.with_ids(new.ids, new.types)
        criteria = StoppingCriteriaList([*(options.get("stopping_criteria") or ()), Stops(stop)])
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
                **{**length(self.model, options), **options, "stopping_criteria": criteria},
            )
            cache, stats = session.cache, session.stats
        new_ids = output[0, ids.shape[1] :]
        answer = said(self.model, self.processor, new_ids, options, stats, stop.is_set())
        longer = Conversation(ids=ids, types=types).with_ids(answer.ids[None].to(ids.device), {})
        return Answered(answer, *longer, cache)

    def read(self, before: Conversation, new: NewPart) -> Answered:
        """Reads a part that is not to be answered."""
        ids, types = before.with_ids(new.ids, new.types)
        read = self.answer(before, new, {"max_new_tokens": 1, "do_sample": False}, Event())
        return read._replace(ids=ids, types=types)
