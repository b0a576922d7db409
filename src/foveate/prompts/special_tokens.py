"""Special tokens that users write in a text, read as the text that they wrote.

A chat template puts users' texts and special tokens into one string, in which nobody can tell them
apart any more. So special tokens in a text become marks before the template is rendered: two
private characters around a number. The tokenizer's stand-in turns marks back into text.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import BatchEncoding

ANSWER = "\ufffc"
"""Stands for an answer of the model while a template is rendered."""

_OPEN, _CLOSE = "\ue000", "\ue001"
_ANCHORS = ("x", ".", "\n", "0")
_PLACEHOLDERS = ("image_token", "video_token", "boi_token")


class Literals:
    """Strings that a processor takes for something else than text, and marks for them."""

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
        """Return the text with marks for special tokens."""
        return self._any.sub(lambda match: f"{_OPEN}{self._numbers[match[0]]}{_CLOSE}", text)

    def marked_in(self, value: Any) -> Any:
        """Return a value of JSON's types with marks for special tokens in all of its texts."""
        if isinstance(value, str):
            return self.marked(value)
        if isinstance(value, Mapping):
            return {name: self.marked_in(inner) for name, inner in value.items()}
        return [self.marked_in(inner) for inner in value] if isinstance(value, list) else value

    def split(self, text: str) -> list[str]:
        """Return a marked text in pieces; every second one is a special token to read as text."""
        pieces = self._mark.split(text)
        pieces[1::2] = [self._texts[int(number)] for number in pieces[1::2]]
        return pieces

    def reader(self, processor: Any) -> Any:
        """Return a copy of a processor or tokenizer that reads marks as the text they stand for."""
        tokenizer = LiteralTokenizer(tokenizer_of(processor), self)
        if not hasattr(processor, "tokenizer"):
            return tokenizer
        reader = copy.copy(processor)
        reader.tokenizer = tokenizer
        return reader


class LiteralTokenizer:
    """A tokenizer that reads marks as text; all else is the tokenizer's."""

    def __init__(self, tokenizer: Any, literals: Literals):
        self._tokenizer, self._literals = tokenizer, literals

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_tokenizer"], name)

    def __len__(self) -> int:
        return len(self._tokenizer)

    def __call__(self, text: str | Sequence[str], **options: Any) -> Any:
        texts = [text] if isinstance(text, str) else text
        pieces = [self._literals.split(each) for each in texts]
        if len(pieces) != 1 or len(pieces[0]) == 1:
            return self._tokenizer(text, **options)
        tensors = options.pop("return_tensors", None)
        special = options.pop("add_special_tokens", True)
        ids = self._tokenizer(pieces[0][0], add_special_tokens=special)["input_ids"]
        for number, piece in enumerate(pieces[0][1:]):
            ids = ids + behind(self._tokenizer, piece, split_special_tokens=number % 2 == 0)
        data = {"input_ids": ids, "attention_mask": [1] * len(ids)}
        if tensors is not None or not isinstance(text, str):
            data = {name: [row] for name, row in data.items()}
        return BatchEncoding(data, tensor_type=tensors)


def probe(number: int) -> str:
    """Return a mark that no text has."""
    return f"{_OPEN}probe {number}{_CLOSE}"


def has_first_token(tokenizer: Any, text: str) -> bool:
    """Return whether a text begins with the token that a tokenizer puts in front of texts, as some
    chat templates write it.
    """
    first = getattr(tokenizer, "bos_token", None)
    return bool(first) and text.startswith(str(first))


def tokenizer_of(processor: Any) -> Any:
    """Return a processor's tokenizer; a tokenizer is its own."""
    return getattr(processor, "tokenizer", processor)


def anchor(tokenizer: Any, text: str) -> tuple[str, list[int]]:
    """Return a text to put in front of another, and its tokens, which are cut off afterwards.

    SentencePiece puts a mark for a space in front of a text that is tokenized alone. Behind an
    anchor a text has the tokens that it has within a longer one.
    """
    for front in _ANCHORS:
        ids = list(tokenizer(front, add_special_tokens=False)["input_ids"])
        if list(tokenizer(front + text, add_special_tokens=False)["input_ids"])[: len(ids)] == ids:
            return front, ids
    return "", []


def behind(tokenizer: Any, text: str, **options: Any) -> list[int]:
    """Return the tokens of a text that follows other text."""
    if not text:
        return []
    front, cut = anchor(tokenizer, text)
    ids = tokenizer(front + text, add_special_tokens=False, **options)["input_ids"]
    return list(ids)[len(cut) :]
