"""One turn of a chat: tokenize it, read it onto a copy of the cache, compress, and answer."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Int
from PIL import Image
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, StoppingCriteriaList
from transformers import __version__ as RELEASE

from foveate.chat.generation import GREEDY, Answer, check, generate_options, to_answer
from foveate.chat.positions import PositionRange
from foveate.chat.storage import bytes_of, trim
from foveate.chat.usage import AnswerMeter, Usage
from foveate.errors import UnsupportedModel
from foveate.hf import Session
from foveate.policies.policy import Policy
from foveate.prompts.inputs import TOKEN_TYPES, encode, moved
from foveate.prompts.messages import Message, media_of
from foveate.prompts.special_tokens import anchor, has_first_token, tokenizer_of
from foveate.prompts.template import Wording

_IDS = "input_ids"
_NOT_PASSED_ON = (_IDS, "attention_mask", *TOKEN_TYPES)
"""Outputs of a processor that ``generate`` gets for the whole conversation."""


@dataclass(frozen=True)
class Conversation:
    """The conversation and its compressed cache, which is never mutated: turns copy it.

    ``text`` is the conversation as the template rendered it, with the latest answer, which is
    message number ``answer``. ``ids`` [1, n] are its tokens, and ``types`` their token types.
    ``turns`` has a record of each turn.
    """

    messages: tuple[Message, ...] = ()
    answer: int = -1
    text: str = ""
    ids: Int[Tensor, "1 n"] = field(
        default_factory=lambda: torch.empty(1, 0, dtype=torch.long, device="cpu")
    )
    types: Mapping[str, Int[Tensor, "1 n"]] = field(default_factory=dict)
    cache: DynamicCache | None = None
    turns: tuple[TurnRecord, ...] = ()

    def with_ids(
        self, new: Int[Tensor, "1 m"], types: Mapping[str, Int[Tensor, "1 m"]]
    ) -> tuple[Int[Tensor, "1 n"], dict[str, Int[Tensor, "1 n"]]]:
        """Return all tokens and token types, with new ones appended; types default to 0, text."""
        old = self.ids.to(new.device)
        text = torch.zeros_like
        longer = {
            name: torch.cat([self.types.get(name, text(old)), types.get(name, text(new))], dim=1)
            for name in {**self.types, **types}
        }
        return torch.cat([old, new], dim=1), longer


class TurnRecord(NamedTuple):
    """Turn of a conversation, for going back to the state before it.

    It begins at message ``first`` and token ``start``. ``options`` are its arguments of
    ``generate``, ``ids`` its answer without the end token. ``before`` is the conversation before
    it, without records; ``full`` is False if its cache lacks the pairs.
    """

    first: int
    start: int
    options: Mapping[str, Any]
    ids: Int[Tensor, "n"]
    ended: Literal["eos", "length", "stopped"]
    usage: Usage
    before: Conversation | None = None
    full: bool = True


class NewPart:
    """Tokens and pixels that a turn adds; ``cut`` tokens at the front of ``inputs`` are no part."""

    def __init__(self, inputs: Mapping[str, Any], cut: int):
        self.ids: Int[Tensor, "1 n"] = inputs[_IDS][:, cut:]
        self.types = {name: inputs[name][:, cut:] for name in TOKEN_TYPES if name in inputs}
        self.media = {name: value for name, value in inputs.items() if name not in _NOT_PASSED_ON}


def read(
    model: PreTrainedModel,
    wording: Wording,
    text: str,
    new: Sequence[Message],
    begins: bool,
    decoded: Sequence[Image.Image] = (),
) -> NewPart:
    """Return the tokens and pixels of a text and of the images and videos of new messages.

    Args:
        model: the model that will read them.
        wording: the conversation's wording, with its processor.
        text: the new part as the template renders it.
        new: the messages of this turn alone.
        begins: True if the text is the conversation's beginning. Otherwise the tokenizer adds
            nothing in front, such as BOS.
        decoded: images that were decoded already, of which those of ``new`` are the last.

    Raises:
        InvalidInput: the processor cannot read the text, or the model does not take images.
        UnsupportedModel: the model reads images through cross-attention; or this release of
            transformers masks images in later turns wrongly.
    """
    tokenizer, literals = tokenizer_of(wording.processor), wording.literals
    prefix, cut = ("", []) if begins else anchor(tokenizer, literals.split(text)[0])
    images, videos = media_of(new)
    images = list(decoded[len(decoded) - len(images) :]) if images and decoded else images
    inputs = encode(
        model,
        wording.processor,
        prefix + text,
        images,
        videos,
        literals=literals,
        add_special_tokens=None if begins and not has_first_token(tokenizer, text) else False,
    )
    if "cross_attention_mask" in inputs:
        raise UnsupportedModel(
            f"a {type(model).__name__} reads images through cross-attention, whose masks cover a "
            "whole conversation, so a chat cannot continue from its cache. Use generate() in a "
            "foveate.compress context."
        )
    if images and not begins and "token_type_ids" in inputs:
        _check_sees_images_later(model)
    return NewPart(moved(inputs, model), len(cut))


def _check_sees_images_later(model: PreTrainedModel) -> None:
    """Refuse later images under transformers before 5.23: bidirectional masks ignored the cache."""
    if tuple(map(int, RELEASE.split(".")[:2])) < (5, 23):
        raise UnsupportedModel(
            f"transformers {RELEASE} masks a new image in a later turn wrongly in "
            f"a {type(model).__name__}: update it to 5.23 or newer, or show all images in the "
            "first turn."
        )


class Answerer(NamedTuple):
    """A model that answers, under a policy; ``positions`` keeps a chat in the model's range."""

    model: PreTrainedModel
    processor: Any
    policy: Policy
    positions: PositionRange | None = None

    def new_session(self) -> Session:
        """Return a session for one turn; it may be created before the turn begins."""
        return Session(self.model, self.policy, tokenizer=self.processor, queued=True)

    def check(
        self,
        options: Mapping[str, Any],
        call: str = "say(...)",
        own: Iterable[str] = (),
        complete: bool = True,
    ) -> None:
        """Refuse arguments of ``generate`` that a chat sets itself, cannot use, or does not know.

        Arguments are those of :func:`foveate.chat.generation.check`.
        """
        check(
            self.model,
            self.processor,
            options,
            call,
            own,
            by="a chat",
            several="For several, fork() the chat, or use generate() inside foveate.compress.",
            decided=("streamer",),
            complete=complete,
        )

    def answer(
        self,
        before: Conversation,
        new: NewPart,
        options: Mapping[str, Any],
        stop: Event,
        streamer: Any = None,
        rearm: bool = True,
    ) -> tuple[Answer, Conversation]:
        """Answer a turn; return the answer, and the tokens, types and cache after it.

        ``options`` are further arguments of ``generate``. Without ``rearm``, the new part is not
        compressed, and the cache cannot be continued.
        """
        ids, types = before.with_ids(new.ids, new.types)
        arguments = generate_options(self.model, self.processor, options, ids.shape[1])
        if self.positions is not None:
            self.positions.find_ways()
        with self.new_session() as session:
            meter = AnswerMeter(stop, self.policy, lambda: session.bytes_held)
            criteria = StoppingCriteriaList([*(options.get("stopping_criteria") or ()), meter])
            reused = 0 if before.cache is None else before.cache.get_seq_length()
            session.link.keeps_scores = self.policy.amount.kind == "bytes"
            cache = copy.deepcopy(before.cache)
            if cache is not None and rearm:
                session.rearm(cache)
            if self.positions is not None:
                session.link.records_positions = self.positions.is_reindexed
                self.positions.keep(cache, new.ids.shape[1])
            output = self.model.generate(  # type: ignore[operator]
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                **types,
                **new.media,
                past_key_values=cache,
                streamer=streamer,
                return_dict_in_generate=False,
                **{**arguments, "stopping_criteria": criteria},
            )
            cache, stats = session.cache, session.stats
            meter.note_size()
            if rearm:  # otherwise the cache is dropped
                trim(cache)  # frees spare room and applies a budget in bytes
        new_ids = output[0, ids.shape[1] :]
        answer = to_answer(self.model, self.processor, new_ids, options, stats, stop.is_set())
        usage = meter.usage(ids.shape[1] - reused, reused, len(new_ids), bytes_of(cache))
        prompt = Conversation(ids=ids, types=types)
        ids, types = prompt.with_ids(answer.ids[None].to(ids.device), {})
        return answer._replace(usage=usage), Conversation(ids=ids, types=types, cache=cache)

    def read(self, before: Conversation, new: NewPart) -> tuple[Answer, Conversation]:
        """Read a part without answering: the one generated token is dropped."""
        ids, types = before.with_ids(new.ids, new.types)
        answer, after = self.answer(before, new, {"max_new_tokens": 1, **GREEDY}, Event())
        return answer, replace(after, ids=ids, types=types)
