"""Questions to a model about a prompt that it has read, and passes whose effects on the cache are
discarded.

Questions are read after the full cache, or after a part of it, and answered greedily. A score then
reads question and answer in a second pass: their attention, or, by gradients, how much the answer
depends on every head's output.
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

_USER_TEXT = "\ufffc"  # placeholder for a user's text in a chat template


@contextmanager
def restored_after(cache: DynamicCache, reread: RereadPass) -> Iterator[None]:
    """Run a probe pass: restore the cache on exit, also after an exception."""
    state, layers = known_state(cache), foveate_layers(cache)
    own, pads, end = [layer.pairs for layer in layers], state.tokens.pad, layers[0].seen
    cache_layers: list[Any] = cache.layers
    others = [(i, layer) for i, layer in enumerate(cache_layers) if layer not in layers]
    try:
        state.reread = reread
        for layer in layers:
            layer.copy_pairs()
        for i, other in others:
            cache_layers[i] = copy.deepcopy(other)
        yield
    finally:
        state.reread = None
        for layer, pairs in zip(layers, own, strict=True):
            layer.restore_pairs(pairs, end)
        for i, other in others:
            cache_layers[i] = other
        state.update_tokens(pad=pads)
        state.view = None


class Answered(NamedTuple):
    """A question and the answers of all rows: tokens, which of them are real in each row, and the
    question's length.
    """

    tokens: Int[Tensor, "b t"]
    real: Bool[Tensor, "b t"]
    question_tokens: int


class Asker(NamedTuple):
    """A model, with the tokenizer of its questions. ``words`` is the tokenizer or processor with a
    chat template, if one has it.
    """

    model: PreTrainedModel
    tokenizer: Any
    words: Any = None

    @classmethod
    def of(cls, model: PreTrainedModel, tokenizer: Any, policy: Policy) -> Asker | None:
        """Return an asker for a policy that asks questions, else None.

        Args:
            model: the model whose cache the policy compresses.
            tokenizer: a tokenizer, or a processor that has one.
            policy: any policy.

        Raises:
            InvalidInput: the policy asks questions, and there is no tokenizer, or no chat template
                where it reads the template's text.
        """
        score = policy.reads_again
        if score is None or not any(
            (score.reading.follow_ups, score.reading.closing, score.reading.questions)
        ):
            return None
        if (score.reading.follow_ups or score.reading.closing) and tokenizer is None:
            raise InvalidInput(
                f"{score!r} asks the model questions, which needs its tokenizer. Pass "
                "compress(model, policy, tokenizer=...)."
            )
        own = getattr(tokenizer, "tokenizer", tokenizer)
        chats = (x for x in (own, tokenizer) if getattr(x, "chat_template", None))
        asker = cls(model, own, next(chats, None))
        if score.reading.closing and not asker.closing.strip():
            raise InvalidInput(
                f"{score!r} reads the text that a chat template adds after a user's message, and "
                f"this {type(tokenizer).__name__} has no such template. Set "
                "tokenizer.chat_template, or give a text to read instead (proxy=...)."
            )
        return asker

    def read_bare(self, text: str, cache: DynamicCache, start: Tensor | None) -> None:
        """Read a text in a probe pass that the score reads; it is not answered."""
        tokens = self._tokens(text, cache)
        self._read(Answered(tokens, torch.ones_like(tokens, dtype=torch.bool), 0), cache, start)

    def read(self, text: str, longest: int, cache: DynamicCache, start: Tensor | None) -> None:
        """Ask a question; then read it with its answer in a probe pass that the score reads.
        ``start`` is the position after the prompt, if it had ``position_ids``.
        """
        tokens = self._tokens(f"\n\n{text}{self.closing}", cache)
        with restored_after(cache, RereadPass(None)):
            exchange = self.answered(tokens, longest, cache, start)
        if exchange.tokens.shape[1] == exchange.question_tokens:
            logging.getLogger("foveate").warning(
                "the model's answer to %r is empty, so only the question is read after the prompt, "
                "which is a weak probe. Choose another question (asks=...).",
                text,
            )
        self._read(exchange, cache, start)

    def _tokens(self, text: str, cache: DynamicCache) -> Int[Tensor, "b t"]:
        """Tokenise a text, for every row of a cache."""
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        tokens = torch.tensor([ids], dtype=torch.long, device=input_device(self.model))
        return tokens.expand(foveate_layers(cache)[0].pairs.counts.shape[0], -1)

    def _read(self, exchange: Answered, cache: DynamicCache, start: Tensor | None) -> None:
        columns = torch.arange(exchange.tokens.shape[1], device=exchange.tokens.device)
        pads = known_state(cache).tokens.padding(exchange.tokens)
        order = (foveate_layers(cache)[0].seen - pads)[:, None] + columns
        with restored_after(cache, RereadPass(order.masked_fill(~exchange.real, -1))):
            self.follow(exchange.tokens, cache, start)

    def answered(
        self, tokens: Int[Tensor, "b t"], longest: int, cache: DynamicCache, start: Tensor | None
    ) -> Answered:
        """Return a question with the model's answer: greedy, each row until it ends. Its pairs stay
        in the cache, which the caller restores.
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
        return Answered(tokens, real, question_tokens)

    def follow(
        self, tokens: Int[Tensor, "b t"], cache: DynamicCache, at: Tensor | None
    ) -> Float[Tensor, "b t v"]:
        """Read these tokens at positions from ``at`` on; return the logits after each."""
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
        """Text of a chat template between a user's message and the answer; a new line without
        template. Some templates take a message as a string, others as parts.
        """
        for content in (_USER_TEXT, [{"type": "text", "text": _USER_TEXT}]) if self.words else ():
            prompt: str = self.words.apply_chat_template(
                [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
            )
            if _USER_TEXT in prompt:
                return prompt.rpartition(_USER_TEXT)[2]
        return "\n"


def ends(model: PreTrainedModel) -> set[int]:
    """Return the tokens that end an answer."""
    eos = getattr(model.generation_config, "eos_token_id", None)
    return set(eos) if isinstance(eos, list) else set() if eos is None else {int(eos)}


def look_back(asker: Asker, reading: Rereading, cache: DynamicCache, start: Tensor | None) -> None:
    """Ask each question in place of the tokens after the prompt's first ones; the model answers it
    greedily, and the score reads how the answer depends on the heads. Questions with an empty
    answer are skipped.

    Args:
        asker: the model.
        reading: the questions, and the number of tokens before them.
        cache: the prompt's cache; it is restored.
        start: the position after these tokens, if the prompt had ``position_ids``.

    Raises:
        InvalidInput: several prompts at once, or fewer tokens than the questions follow.
        UnsupportedModel: gradients are not available, or layers other than full attention have read
            the complete prompt.
    """
    _check(cache, reading.after)
    for ids in reading.questions:
        tokens = torch.tensor([ids], dtype=torch.long, device=input_device(asker.model))
        with _cut(cache, RereadPass(None), reading.after):
            exchange = asker.answered(tokens, reading.longest, cache, start)
        if exchange.tokens.shape[1] > exchange.question_tokens:
            _score(asker, exchange, reading.after, cache, start)


def _check(cache: DynamicCache, after: int) -> None:
    layers = foveate_layers(cache)
    cache_layers: list[Any] = cache.layers
    rows, seen = layers[0].pairs.counts.shape[0], layers[0].seen
    if rows != 1 or not 0 < after <= seen:
        raise InvalidInput(
            f"questions follow the first {after} tokens of one prompt, and {rows} prompt(s) of "
            f"{seen} tokens were passed. Pass one prompt at a time, with at least so many tokens."
        )
    if after < seen and any(layer not in layers and layer.is_initialized for layer in cache_layers):
        raise UnsupportedModel(
            "questions are asked after a part of the prompt, and some layers of this model "
            "(sliding windows, recurrent states) have read all of it."
        )


@contextmanager
def _cut(cache: DynamicCache, reread: RereadPass, after: int) -> Iterator[None]:
    """Cut the cache to the prompt's first tokens, in a probe pass."""
    with restored_after(cache, reread):
        for layer in foveate_layers(cache):
            layer.cut(after)
        yield


def _score(
    asker: Asker, exchange: Answered, after: int, cache: DynamicCache, start: Tensor | None
) -> None:
    """Read question and answer in one pass, and pass the score the gradients."""
    order = torch.arange(exchange.tokens.shape[1], device=exchange.tokens.device)
    reread = RereadPass(order[None], outputs={})
    try:
        with _cut(cache, reread, after), torch.inference_mode(False), torch.enable_grad():
            logits = asker.follow(exchange.tokens, cache, start)
            sure = sureness(logits[:, exchange.question_tokens - 1 : -1])
        noted = reread.outputs or {}
        gradients = torch.autograd.grad(sure, [output for _, output in noted.values()])
    except RuntimeError as error:  # PyTorch raises no narrower type
        raise UnsupportedModel(
            f"gradients of this model's answers are not available: {error}"
        ) from error
    for (layer, _), gradient in zip(noted.values(), gradients, strict=True):
        known_state(cache).reading.answered(layer, gradient)


def sureness(logits: Float[Tensor, "b t v"]) -> Float[Tensor, ""]:
    """Compute a model's confidence in its answer: the logit of the top token minus the logsumexp of
    all others, summed over positions.
    """
    best, top = logits.float().max(-1)
    others = logits.float().scatter(-1, top[..., None], -torch.inf)
    total: Tensor = (best - others.logsumexp(-1)).sum()
    return total
