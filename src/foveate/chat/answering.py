"""One turn: the new part is read onto a copy of the cache, compressed with it, and answered."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from threading import Event
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from foveate.chat.arguments import check_arguments
from foveate.chat.asking import GREEDY, Answer, check, generate_options, said
from foveate.chat.reading import Conversation, NewPart
from foveate.chat.trimming import trim
from foveate.hf import Session
from foveate.policies.policy import Policy


class Answered(NamedTuple):
    """A turn's answer, and all tokens, types and pairs after it."""

    answer: Answer
    ids: Int[Tensor, "1 n"]
    types: Mapping[str, Int[Tensor, "1 n"]]
    cache: DynamicCache


class Stops(StoppingCriteria):
    """Stopping criterion that ends generation once an event is set."""

    def __init__(self, stop: Event):
        self._stop = stop

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        return torch.full(
            (len(input_ids),), self._stop.is_set(), dtype=torch.bool, device=input_ids.device
        )


class Answerer(NamedTuple):
    """A model that answers, under a policy."""

    model: PreTrainedModel
    processor: Any
    policy: Policy

    def block(self) -> Session:
        """Return a session for one turn; it may be made before the turn begins."""
        return Session(self.model, self.policy, tokenizer=self.processor, queued=True)

    def check(
        self,
        options: Mapping[str, Any],
        call: str = "say(...)",
        own: Iterable[str] = (),
        complete: bool = True,
    ) -> None:
        """Refuse arguments of ``generate`` that a chat decides, cannot have, or that are unknown.
        ``own`` are the parameters of the ``call`` itself, for a suggestion; arguments of a
        constructor are not ``complete``.
        """
        several = "For several fork() it, or use generate() in a foveate.compress block."
        check(self.model, options, "a chat", several, "streamer", complete=complete)
        check_arguments(call, options, self.model, self.processor, own)

    def answer(
        self,
        before: Conversation,
        new: NewPart,
        options: Mapping[str, Any],
        stop: Event,
        streamer: Any = None,
        rearm: bool = True,
    ) -> Answered:
        """Answer a turn; ``options`` are further arguments of ``generate``. Without ``rearm`` the
        new part is kept whole. The cache has no spare room, and keeps to a budget in bytes.
        """
        ids, types = before.with_ids(new.ids, new.types)
        given = generate_options(self.model, self.processor, options, ids.shape[1])
        criteria = StoppingCriteriaList([*(options.get("stopping_criteria") or ()), Stops(stop)])
        with self.block() as session:
            session.link.keeps_scores = self.policy.amount.kind == "bytes"
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
                **{**given, "stopping_criteria": criteria},
            )
            cache, stats = session.cache, session.stats
            if rearm:  # otherwise nobody goes on from this cache
                trim(cache)
        new_ids = output[0, ids.shape[1] :]
        answer = said(self.model, self.processor, new_ids, options, stats, stop.is_set())
        longer = Conversation(ids=ids, types=types).with_ids(answer.ids[None].to(ids.device), {})
        return Answered(answer, *longer, cache)

    def read(self, before: Conversation, new: NewPart) -> Answered:
        """Read a part that is not answered."""
        ids, types = before.with_ids(new.ids, new.types)
        read = self.answer(before, new, {"max_new_tokens": 1, **GREEDY}, Event())
        return read._replace(ids=ids, types=types)
