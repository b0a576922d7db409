"""Escaping of special tokens in users' texts, which are read as plain text.

A rendered chat template contains users' texts and special tokens in one string. So special tokens
in a user's text are replaced by marks before rendering: two private-use characters around a number.
:class:`LiteralTokenizer` turns the marks back into text.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import BatchEncoding

ANSWER = "\ufffc"
"""Placeholder for an answer of the model while a template is rendered."""

_OPEN, _CLOSE = "\ue000", "\ue001"
_ANCHORS = ("x", ".", "\n", "0")
_PLACEHOLDERS = ("image_token", "video_token", "boi_token")


class Literals:
    """Special tokens and placeholders of a processor, and the marks that replace them."""

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
        """Replace special tokens in a text by marks."""
        return self._any.sub(lambda match: f"{_OPEN}{self._numbers[match[0]]}{_CLOSE}", text)

    def marked_in(self, value: Any) -> Any:
        """Replace special tokens by marks in all texts of a JSON value."""
        if isinstance(value, str):
            return self.marked(value)
        if isinstance(value, Mapping):
            return {name: self.marked_in(inner) for name, inner in value.items()}
        return [self.marked_in(inner) for inner in value] if isinstance(value, list) else value

    def split(self, text: str) -> list[str]:
        """Split a text at its marks; every second piece is a special token to read as text."""
        pieces = self._mark.split(text)
        pieces[1::2] = [self._texts[int(number)] for number in pieces[1::2]]
        return pieces

    def reader(self, processor: Any) -> Any:
        """Return a copy of a processor or tokenizer that reads marks as the text they replace."""
        tokenizer = LiteralTokenizer(tokenizer_of(processor), self)
        if not hasattr(processor, "tokenizer"):
            return tokenizer
        reader = copy.copy(processor)
        reader.tokenizer = tokenizer
        return reader


class LiteralTokenizer:
    """Wrapper of a tokenizer that reads marks as text; other attributes are the tokenizer's."""

    def __init__(self, tokenizer: Any, literals: Literals):
        self._tokenizer, self._literals = tokenizer, literals

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_tokenizer"], name)

    def __len__(self) -> int:
        return len(self._tokenizer)

    def __call__(self, text: str | Sequence[str], **options: Any) -> Any:
        texts = [text] if isinstance(text, str) else text
        pieces = [self._literals.split(item) for item in texts]
        if len(pieces) != 1 or len(pieces[0]) == 1:
            return self._tokenizer(text, **options)
        tensors = options.pop("return_tensors", None)
        special = options.pop("add_special_tokens", True)
        ids = self._tokenizer(pieces[0][0], add_special_tokens=special)["input_ids"]
        for number, piece in enumerate(pieces[0][1:]):
            ids = ids + tokens_after(self._tokenizer, piece, split_special_tokens=number % 2 == 0)
        data = {"input_ids": ids, "attention_mask": [1] * len(ids)}
        if tensors is not None or not isinstance(text, str):
            data = {name: [row] for name, row in data.items()}
        return BatchEncoding(data, tensor_type=tensors)


def probe(number: int) -> str:
    """Return a mark that no text contains."""
    return f"{_OPEN}probe {number}{_CLOSE}"


def has_first_token(tokenizer: Any, text: str) -> bool:
    """Return True if a text begins with the tokenizer's BOS, which some chat templates write."""
    first = getattr(tokenizer, "bos_token", None)
    return bool(first) and text.startswith(str(first))


def tokenizer_of(processor: Any) -> Any:
    """Return a processor's tokenizer, or the tokenizer itself."""
    return getattr(processor, "tokenizer", processor)


def anchor(tokenizer: Any, text: str) -> tuple[str, list[int]]:
    """Return a short text to put in front of another, and its tokens, to be cut off afterwards.

    SentencePiece adds a space in front of a text that is tokenized alone. After an anchor, a text
    has the tokens that it has within a longer text.
    """
    for front in _ANCHORS:
        ids = list(tokenizer(front, add_special_tokens=False)["input_ids"])
        if list(tokenizer(front + text, add_special_tokens=False)["input_ids"])[: len(ids)] == ids:
            return front, ids
    return "", []


def tokens_after(tokenizer: Any, text: str, **options: Any) -> list[int]:
    """Return the tokens of a text that follows other text."""
    if not text:
        return []
    front, cut = anchor(tokenizer, text)
    ids = tokenizer(front + text, add_special_tokens=False, **options)["input_ids"]
    return list(ids)[len(cut) :]
