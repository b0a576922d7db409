"""Text of users as tokens of text: a special token that is written in it stays what was written.

Chat templates put what users say and special tokens into one string, in which nobody can tell them
apart any more. So before a template is asked, every special token in a text becomes a mark, two
private characters around its number, which is undone where the tokenizer reads the string.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

from transformers import BatchEncoding

ANSWER = "\ufffc"
"""Stands for an answer of the model in what a template words."""

_OPEN, _CLOSE = "\ue000", "\ue001"
_ANCHORS = ("x", ".", "\n", "0")
_PLACEHOLDERS = ("image_token", "video_token", "boi_token")


class Literals:
    """The strings that a processor takes for something else than text."""

    def __init__(self, processor: Any):
        tokenizer = tokenizer_of(processor)
        added = getattr(tokenizer, "added_tokens_decoder", {}).values()
        special = {str(token) for token in added if token.special}
        special |= set(map(str, getattr(tokenizer, "all_special_tokens", ())))
        special |= {str(getattr(processor, name, None) or "") for name in _PLACEHOLDERS}
        self._texts = sorted(special - {""} | {ANSWER, _OPEN, _CLOSE}, key=len, reverse=True)
        self._numbers = {text: number for number, text in enumerate(self._texts)}
        self._any = re.compile("|".join(map(re.escape, self._texts)))
        self._mark = re.compile(f"{_OPEN}(\\d+){_CLOSE}")

    def marked(self, text: str) -> str:
        """The text with marks for special tokens."""
        return self._any.sub(lambda one: f"{_OPEN}{self._numbers[one[0]]}{_CLOSE}", text)

    def split(self, text: str) -> list[str]:
        """A marked text in pieces, of which every second one is a special token to be read as
        text.
        """
        pieces = self._mark.split(text)
        pieces[1::2] = [self._texts[int(number)] for number in pieces[1::2]]
        return pieces

    def unmarked(self, text: str) -> str:
        """What was written."""
        return "".join(self.split(text))

    def reader(self, processor: Any) -> Any:
        """A copy of a processor, or of a tokenizer, that reads marked texts as they were meant."""
        reads = LiteralTokenizer(tokenizer_of(processor), self)
        if not hasattr(processor, "tokenizer"):
            return reads
        mine = copy.copy(processor)
        mine.tokenizer = reads
        return mine


class LiteralTokenizer:
    """A tokenizer that knows marks; whatever else is asked of it, it hands on."""

    def __init__(self, tokenizer: Any, literals: Literals):
        self._tokenizer, self._literals = tokenizer, literals

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_tokenizer"], name)

    def __len__(self) -> int:
        return len(self._tokenizer)

    def __call__(self, text: str | Sequence[str], **options: Any) -> Any:
        texts = [text] if isinstance(text, str) else text
        pieces = [self._literals.split(one) for one in texts]
        if len(pieces) != 1 or len(pieces[0]) == 1:
            return self._tokenizer(text, **options)
        tensors = options.pop("return_tensors", None)
        special = options.pop("add_special_tokens", True)
        ids = self._tokenizer(pieces[0][0], add_special_tokens=special)["input_ids"]
        for number, piece in enumerate(pieces[0][1:]):
            ids = ids + behind(self._tokenizer, piece, split_special_tokens=number % 2 == 0)
        data = {"input_ids": [ids], "attention_mask": [[1] * len(ids)]}
        return BatchEncoding(data, tensor_type=tensors)


def lacks_first_token(tokenizer: Any, text: str) -> bool:
    """Whether the token with which a tokenizer begins its texts is not written in this one yet, as
    some chat templates do.
    """
    first = getattr(tokenizer, "bos_token", None)
    return not (first and text.startswith(first))


def tokenizer_of(processor: Any) -> Any:
    """A processor's tokenizer; a tokenizer is its own."""
    return getattr(processor, "tokenizer", processor)


def anchor(tokenizer: Any, text: str) -> tuple[str, list[int]]:
    """Something to put in front of a text so that its tokens are those within a longer one, and
    its own tokens, which are to be cut off again. SentencePiece puts a mark for a space in front of
    what is tokenised alone.
    """
    for one in _ANCHORS:
        ids = list(tokenizer(one, add_special_tokens=False)["input_ids"])
        if list(tokenizer(one + text, add_special_tokens=False)["input_ids"])[: len(ids)] == ids:
            return one, ids
    return "", []


def behind(tokenizer: Any, text: str, **options: Any) -> list[int]:
    """The tokens of a text that stands behind other text."""
    if not text:
        return []
    front, cut = anchor(tokenizer, text)
    ids = tokenizer(front + text, add_special_tokens=False, **options)["input_ids"]
    return list(ids)[len(cut) :]
