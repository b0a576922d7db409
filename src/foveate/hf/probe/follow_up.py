"""Questions to a model about a prompt that it has read, and passes that leave its cache as it was.

Questions are asked after the full cache, or after a part of it, and answered greedily. Question
and answer are then read once more, while a score looks on: at their attention, or at how much the
answer depends on every head's output, by gradients.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from foveate.errors import InvalidInput, UnsupportedModel
from foveate.hf.layer.state import RereadPass
from foveate.hf.layer.support import foveate_layers, known_state
from foveate.hf.model.devices import input_device
from foveate.hf.model.internals import CACHE
from foveate.policies.policy import Policy
from foveate.policies.protocols import Rereading

_WORDS = "\ufffc"  # stands for the words of a user in a chat template


@contextmanager
def restored_after(cache: DynamicCache, reread: RereadPass) -> Iterator[None]:
    """Whatever is read inside, the cache holds what it held, also after an exception."""
    state, layers = known_state(cache), foveate_layers(cache)
    own, pads, end = [layer.pairs for layer in layers], state.tokens.pad, layers[0].seen
    held: list[Any] = cache.layers
    others = [(place, layer) for place, layer in enumerate(held) if layer not in layers]
    try:
        state.reread = reread
        for layer in layers:
            layer.use_copy()
        for place, other in others:
            held[place] = copy.deepcopy(other)
        yield
    finally:
        state.reread = None
        for layer, pairs in zip(layers, own, strict=True):
            layer.give_back(pairs, end)
        for place, other in others:
            held[place] = other
        state.update_tokens(pad=pads)
        state.view = None


class Said(NamedTuple):
    """A question with the answers of all rows, which of these tokens are there in each row, and how
    many are the question's.
    """

    tokens: Int[Tensor, "b t"]
    real: Bool[Tensor, "b t"]
    question_tokens: int


class Asker(NamedTuple):
    """A model, and what turns words into its tokens, where it is asked in words. ``words`` is the
    tokenizer or processor that words a chat, if one does.
    """

    model: PreTrainedModel
    tokenizer: Any
    words: Any = None

    @classmethod
    def of(cls, model: PreTrainedModel, tokenizer: Any, policy: Policy) -> Asker | None:
        """For a policy that asks something.

        Args:
            model: whose cache the policy compresses.
            tokenizer: a tokenizer, or a processor that has one.
            policy: any.

        Raises:
            InvalidInput: it asks something, and there is no tokenizer, or no chat template where it
                reads the words of one.
        """
        score = policy.reads_again
        if score is None or not any(
            (score.reading.follow_ups, score.reading.closing, score.reading.questions)
        ):
            return None
        if (score.reading.follow_ups or score.reading.closing) and tokenizer is None:
            raise InvalidInput(
                f"{score!r} asks the model something, and nothing turns the words into tokens. "
                "Give compress(model, policy, tokenizer=...)."
            )
        own = getattr(tokenizer, "tokenizer", tokenizer)
        chats = (one for one in (own, tokenizer) if getattr(one, "chat_template", None))
        made = cls(model, own, next(chats, None))
        if score.reading.closing and not made.closing.strip():
            raise InvalidInput(
                f"{score!r} reads what a chat template puts behind a user's words, and this "
                f"{type(tokenizer).__name__} has no chat template that says so. Give one "
                "(tokenizer.chat_template), or words to read instead (proxy=...)."
            )
        return made

    def read_bare(self, text: str, cache: DynamicCache, start: Tensor | None) -> None:
        """Reads a text as it is, while a score looks on; it is not answered."""
        tokens = self._tokens(text, cache)
        self._read(Said(tokens, torch.ones_like(tokens, dtype=torch.bool), 0), cache, start)

    def read(self, text: str, longest: int, cache: DynamicCache, start: Tensor | None) -> None:
        """Asks, and reads what was asked and answered; a score looks on. ``start`` is the position
        after the prompt, if positions were given with it.
        """
        tokens = self._tokens(f"\n\n{text}{self.closing}", cache)
        with restored_after(cache, RereadPass(None)):
            said = self.answered(tokens, longest, cache, start)
        if said.tokens.shape[1] == said.question_tokens:
            logging.getLogger("foveate").warning(
                "the model answers %r with nothing, so the question alone is read after the "
                "prompt, which tells little. Ask something else (asks=...).",
                text,
            )
        self._read(said, cache, start)

    def _tokens(self, text: str, cache: DynamicCache) -> Int[Tensor, "b t"]:
        """A text's tokens, for every row of a cache."""
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        tokens = torch.tensor([ids], dtype=torch.long, device=input_device(self.model))
        return tokens.expand(foveate_layers(cache)[0].pairs.counts.shape[0], -1)

    def _read(self, said: Said, cache: DynamicCache, start: Tensor | None) -> None:
        columns = torch.arange(said.tokens.shape[1], device=said.tokens.device)
        pads = known_state(cache).tokens.padding(said.tokens)
        order = (foveate_layers(cache)[0].seen - pads)[:, None] + columns
        with restored_after(cache, RereadPass(order.masked_fill(~said.real, -1))):
            self.follow(said.tokens, cache, start)

    def answered(
        self, tokens: Int[Tensor, "b t"], longest: int, cache: DynamicCache, start: Tensor | None
    ) -> Said:
        """A question, and what the model says to it: greedy, every row until it ends by itself. It
        stays in the cache, which is restored afterwards.
        """
        question_tokens = tokens.shape[1]
        real, stop = torch.ones_like(tokens, dtype=torch.bool), sorted(ends(self.model))
        logits = self.follow(tokens, cache, start)[:, -1]
        for count in range(longest):
            new = logits.argmax(-1)[:, None]
            goes_on = real[:, -1:] & ~torch.isin(new, new.new_tensor(stop))
            if not bool(goes_on.any()):
                break
            tokens = torch.cat([tokens, new], dim=1)
            real = torch.cat([real, goes_on], dim=1)
            if count < longest - 1:
                after = None if start is None else start + tokens.shape[1] - 1
                logits = self.follow(new, cache, after)[:, -1]
        return Said(tokens, real, question_tokens)

    def follow(
        self, tokens: Int[Tensor, "b t"], cache: DynamicCache, at: Tensor | None
    ) -> Float[Tensor, "b t v"]:
        """The logits after each of these tokens, which stand at position ``at`` and on."""
        known = inspect.signature(self.model.forward).parameters
        inputs: dict[str, Any] = {"input_ids": tokens, CACHE: cache, "use_cache": True}
        pads = known_state(cache).tokens.pad
        if pads is not None:
            seen = foveate_layers(cache)[0].seen + tokens.shape[1]
            columns = torch.arange(seen, device=tokens.device)
            inputs["attention_mask"] = (columns >= pads.to(tokens.device)[:, None]).long()
        if at is not None and "position_ids" in known:
            inputs["position_ids"] = at + torch.arange(tokens.shape[1], device=at.device)
        logits: Tensor = self.model(**inputs).logits
        return logits

    @property
    def closing(self) -> str:
        """What a chat template puts between a user's words and the answer; a new line without. Some
        templates take words as they are, others in parts.
        """
        for content in (_WORDS, [{"type": "text", "text": _WORDS}]) if self.words else ():
            said: str = self.words.apply_chat_template(
                [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
            )
            if _WORDS in said:
                return said.rpartition(_WORDS)[2]
        return "\n"


def ends(model: PreTrainedModel) -> set[int]:
    """The tokens that end an answer."""
    eos = getattr(model.generation_config, "eos_token_id", None)
    return set(eos) if isinstance(eos, list) else set() if eos is None else {int(eos)}


def look_back(asker: Asker, reading: Rereading, cache: DynamicCache, start: Tensor | None) -> None:
    """Asks each question in place of what follows the prompt's first tokens, has the model answer
    it greedily, and shows the score what the answer depends on. One that is answered with nothing
    tells nothing.

    Args:
        asker: the model.
        reading: which questions, after how many tokens.
        cache: of the prompt, which holds afterwards what it held.
        start: the position after these tokens, if positions were given with the prompt.

    Raises:
        InvalidInput: several prompts at once, or fewer tokens than the questions follow.
        UnsupportedModel: no gradients can be had of it, or other layers than full attention hold
            all of the prompt.
    """
    _check(cache, reading.after)
    for ids in reading.questions:
        tokens = torch.tensor([ids], dtype=torch.long, device=input_device(asker.model))
        with _cut(cache, RereadPass(None), reading.after):
            said = asker.answered(tokens, reading.longest, cache, start)
        if said.tokens.shape[1] > said.question_tokens:
            _show(asker, said, reading.after, cache, start)


def _check(cache: DynamicCache, after: int) -> None:
    layers = foveate_layers(cache)
    held: list[Any] = cache.layers
    rows, seen = layers[0].pairs.counts.shape[0], layers[0].seen
    if rows != 1 or not 0 < after <= seen:
        raise InvalidInput(
            f"questions follow the first {after} tokens of one prompt, and {rows} prompt(s) of "
            f"{seen} tokens were given. Give prompts one by one, and tokens that they have."
        )
    if after < seen and any(one not in layers and one.is_initialized for one in held):
        raise UnsupportedModel(
            "questions are asked after a part of the prompt, and some layers of this model "
            "(sliding windows, recurrent states) have read all of it."
        )


@contextmanager
def _cut(cache: DynamicCache, reread: RereadPass, after: int) -> Iterator[None]:
    """A cache that is restored afterwards, of the prompt's first tokens."""
    with restored_after(cache, reread):
        for layer in foveate_layers(cache):
            layer.cut(after)
        yield


def _show(asker: Asker, said: Said, after: int, cache: DynamicCache, start: Tensor | None) -> None:
    """Reads question and answer once more in one pass, with gradients."""
    places = torch.arange(said.tokens.shape[1], device=said.tokens.device)
    reread = RereadPass(places[None], outputs={})
    try:
        with _cut(cache, reread, after), torch.inference_mode(False), torch.enable_grad():
            logits = asker.follow(said.tokens, cache, start)
            sure = sureness(logits[:, said.question_tokens - 1 : -1])
        noted = reread.outputs or {}
        gradients = torch.autograd.grad(sure, [output for _, output in noted.values()])
    except RuntimeError as error:  # of PyTorch, which has none more narrow
        raise UnsupportedModel(
            f"no gradients of answers can be had of this model: {error}"
        ) from error
    for (shown, _), gradient in zip(noted.values(), gradients, strict=True):
        known_state(cache).reading.answered(shown, gradient)


def sureness(logits: Float[Tensor, "b t v"]) -> Float[Tensor, ""]:
    """How sure a model is of what it says: the logit of the top token less the logsumexp of all
    others, added up over all places.
    """
    best, place = logits.float().max(-1)
    others = logits.float().scatter(-1, place[..., None], -torch.inf)
    total: Tensor = (best - others.logsumexp(-1)).sum()
    return total
