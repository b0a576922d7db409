"""What a model says about a prompt that it has read: asked after the full cache, answered greedily,
and read once more as a whole, while a score looks on.
"""

from __future__ import annotations

import inspect
import logging
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from foveate.errors import InvalidInput
from foveate.hf.layer.state import CacheState, RereadPass
from foveate.hf.layer.support import foveate_layers
from foveate.hf.model.devices import input_device
from foveate.hf.model.internals import CACHE
from foveate.hf.probe.temporary_passes import restored_after
from foveate.policies.policy import Policy

_WORDS = "\ufffc"  # stands for the words of a user in a chat template


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
            (score.reading.asks, score.reading.closing, score.reading.questions)
        ):
            return None
        if (score.reading.asks or score.reading.closing) and tokenizer is None:
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

    def read_bare(
        self, text: str, cache: DynamicCache, state: CacheState, start: Tensor | None
    ) -> None:
        """Reads a text as it is, while a score looks on; it is not answered."""
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        tokens = torch.tensor([ids], dtype=torch.long, device=input_device(self.model))
        tokens = tokens.expand(foveate_layers(cache)[0].pairs.counts.shape[0], -1)
        self._read(Said(tokens, torch.ones_like(tokens, dtype=torch.bool), 0), cache, state, start)

    def read(
        self, text: str, longest: int, cache: DynamicCache, state: CacheState, start: Tensor | None
    ) -> None:
        """Asks, and reads what was asked and answered; a score looks on. ``start`` is the position
        after the prompt, if positions were given with it.
        """
        rows = foveate_layers(cache)[0].pairs.counts.shape[0]
        tokens = self._question(text).expand(rows, -1)
        with restored_after(cache, state, RereadPass(None)):
            said = self.answered(tokens, longest, cache, state, start)
        if said.tokens.shape[1] == said.question_tokens:
            logging.getLogger("foveate").warning(
                "the model answers %r with nothing, so the question alone is read after the "
                "prompt, which tells little. Ask something else (asks=...).",
                text,
            )
        self._read(said, cache, state, start)

    def _read(
        self, said: Said, cache: DynamicCache, state: CacheState, start: Tensor | None
    ) -> None:
        columns = torch.arange(said.tokens.shape[1], device=said.tokens.device)
        order = _lengths(cache, state, said.real)[:, None] + columns
        with restored_after(cache, state, RereadPass(order.masked_fill(~said.real, -1))):
            self.follow(said.tokens, cache, state, start)

    def answered(
        self,
        tokens: Int[Tensor, "b t"],
        longest: int,
        cache: DynamicCache,
        state: CacheState,
        start: Tensor | None,
    ) -> Said:
        """A question, and what the model says to it: greedy, every row until it ends by itself. It
        stays in the cache, which is restored afterwards.
        """
        question_tokens = tokens.shape[1]
        real, stop = torch.ones_like(tokens, dtype=torch.bool), sorted(ends(self.model))
        logits = self.follow(tokens, cache, state, start)[:, -1]
        for count in range(longest):
            new = logits.argmax(-1)[:, None]
            goes_on = real[:, -1:] & ~torch.isin(new, new.new_tensor(stop))
            if not bool(goes_on.any()):
                break
            tokens = torch.cat([tokens, new], dim=1)
            real = torch.cat([real, goes_on], dim=1)
            if count < longest - 1:
                after = None if start is None else start + tokens.shape[1] - 1
                logits = self.follow(new, cache, state, after)[:, -1]
        return Said(tokens, real, question_tokens)

    def follow(
        self, tokens: Int[Tensor, "b t"], cache: DynamicCache, state: CacheState, at: Tensor | None
    ) -> Float[Tensor, "b t v"]:
        """The logits after each of these tokens, which stand at position ``at`` and on."""
        known = inspect.signature(self.model.forward).parameters
        inputs: dict[str, Any] = {"input_ids": tokens, CACHE: cache, "use_cache": True}
        if state.tokens.pad is not None:
            seen = foveate_layers(cache)[0].seen + tokens.shape[1]
            columns = torch.arange(seen, device=tokens.device)
            mask = columns >= state.tokens.pad.to(tokens.device)[:, None]
            inputs["attention_mask"] = mask.long()
        if at is not None and "position_ids" in known:
            inputs["position_ids"] = at + torch.arange(tokens.shape[1], device=at.device)
        logits: Tensor = self.model(**inputs).logits
        return logits

    def _question(self, text: str) -> Int[Tensor, "1 t"]:
        """The words as a user's last ones, up to where the model answers."""
        ids = self.tokenizer(f"\n\n{text}{self.closing}", add_special_tokens=False)
        return torch.tensor([ids["input_ids"]], dtype=torch.long, device=input_device(self.model))

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


def _lengths(cache: DynamicCache, state: CacheState, like: Bool[Tensor, "b t"]) -> Int[Tensor, "b"]:
    """Tokens of each row's prompt."""
    tokens = foveate_layers(cache)[0].seen
    seen = torch.full((len(like),), tokens, dtype=torch.long, device=like.device)
    return seen if state.tokens.pad is None else seen - state.tokens.pad.to(like.device)
