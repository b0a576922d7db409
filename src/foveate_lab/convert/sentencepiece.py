"""Tokenizers stored as a SentencePiece model (``tokenizer.model``), read without its library.

The file is a protocol buffer, sentencepiece_model.proto of SentencePiece: field 1 holds the pieces
(text 1, score 2, kind 3), 2 the training (3: the algorithm), 3 the normalizer (2: a table of
characters, 3: whether a space is put in front of every text).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from foveate.errors import ModelNotFound, UnsupportedModel
from foveate_lab.convert.weights import json_file

SPACE = "\u2581"
BPE = 2
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
Field = tuple[int, int | bytes]


class Piece(NamedTuple):
    """Token: its text, its score (higher merges first) and its kind."""

    text: str
    score: float
    kind: int


class SentencePieceModel(NamedTuple):
    """Contents of the file."""

    pieces: list[Piece]
    characters: bytes
    space_in_front: bool


def tokenizer(folder: Path) -> Tokenizer:
    """Read the tokenizer of a directory, including tokens added later.

    Raises:
        ModelNotFound: no ``tokenizer.model``, or a damaged one.
        UnsupportedModel: it was not trained with byte-pair encoding.
    """
    model, added = read(folder / "tokenizer.model"), added_tokens(folder)
    names = [added.get(index, piece.text) for index, piece in enumerate(model.pieces)]
    vocabulary = {name: index for index, name in enumerate(names)}
    unknown = next((p.text for p in model.pieces if p.kind == UNKNOWN), None)
    bpe = models.BPE(
        vocabulary, merges(model.pieces), unk_token=unknown, fuse_unk=True, byte_fallback=True
    )
    tokenizer = Tokenizer(bpe)
    tokenizer.normalizer = normalizers.Sequence(_normalizers(model))
    tokenizer.decoder = decoders.Sequence(_decoders(model))
    users = [p.text for p in model.pieces if p.kind == USER_DEFINED]
    special = [p.text for p in model.pieces if p.kind in (UNKNOWN, CONTROL)]
    later = [added[index] for index in sorted(added)]
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in users])
    tokenizer.add_special_tokens(
        [AddedToken(name, normalized=False) for name in (*special, *later)]
    )
    return tokenizer


def read(path: Path) -> SentencePieceModel:
    """Read a SentencePiece model. Raises as `tokenizer` does."""
    if not path.is_file():
        raise ModelNotFound(
            f"{str(path.parent)!r} has no tokenizer.model. Download the whole repository."
        )
    try:
        fields = list(_fields(path.read_bytes()))
        pieces = [_piece(dict(_fields(_bytes(value)))) for key, value in fields if key == 1]
        trained, normal = (dict(_fields(_part(fields, key))) for key in (2, 3))
    except (IndexError, KeyError, ValueError, struct.error) as error:
        raise ModelNotFound(f"{str(path)!r} is damaged ({error}). Download it again.") from error
    if trained.get(3, 1) != BPE or not pieces:
        raise UnsupportedModel(f"{str(path)!r} is not a byte-pair encoding, so it cannot be read.")
    return SentencePieceModel(pieces, _bytes(normal.get(2, b"")), bool(normal.get(3, 1)))


def added_tokens(folder: Path) -> dict[int, str]:
    """Return the tokens that a tokenizer's JSON files add, by id; some replace unused pieces."""
    config = json_file(folder / "tokenizer_config.json").get("added_tokens_decoder", {})
    added = {int(index): str(token["content"]) for index, token in config.items()}
    later = json_file(folder / "added_tokens.json")
    return added | {int(index): str(name) for name, index in later.items()}


def merges(pieces: Sequence[Piece]) -> list[tuple[str, str]]:
    """Return the pairs that merge into a piece, highest score first."""
    ranks = {piece.text: piece.score for piece in pieces if piece.kind == NORMAL}
    merged = [
        (score, text[:cut], text[cut:])
        for text, score in ranks.items()
        for cut in range(1, len(text))
        if text[:cut] in ranks and text[cut:] in ranks
    ]
    merged.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=True)
    return [(left, right) for _, left, right in merged]


def _normalizers(model: SentencePieceModel) -> list[normalizers.Normalizer]:
    table = [normalizers.Precompiled(model.characters)] if model.characters else []
    front = [normalizers.Prepend(SPACE)] if model.space_in_front else []
    return [*table, *front, normalizers.Replace(" ", SPACE)]


def _decoders(model: SentencePieceModel) -> list[decoders.Decoder]:
    front = [decoders.Strip(" ", 1, 0)] if model.space_in_front else []
    return [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *front]


def _piece(fields: dict[int, int | bytes]) -> Piece:
    score = fields.get(2, bytes(4))
    kind = fields.get(3, NORMAL)
    text = _bytes(fields.get(1, b"")).decode("utf-8")
    return Piece(text, struct.unpack("<f", _bytes(score))[0], int(kind) if kind else NORMAL)


def _part(fields: Sequence[Field], key: int) -> bytes:
    return _bytes(next((value for name, value in fields if name == key), b""))


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a field is a number where a text is expected")
    return value


def _fields(data: bytes) -> Iterator[Field]:
    """Yield the fields of a protobuf message: varints as integers, everything else as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value: int | bytes
            value, at = _varint(data, at)
        else:
            length, at = (_varint(data, at)) if kind == 2 else ({1: 8, 5: 4}[kind], at)
            if at + length > len(data):
                raise ValueError("it ends in the middle of a field")
            value, at = data[at : at + length], at + length
        yield key >> 3, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1
