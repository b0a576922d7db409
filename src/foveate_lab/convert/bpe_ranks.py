"""Tokenizers stored as a table of byte strings with their ranks (``qwen.tiktoken``)."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers.convert_slow_tokenizer import bytes_to_unicode

from foveate.errors import ModelNotFound

Ranks = dict[bytes, int]


def tokenizer(path: Path, pattern: str, special: tuple[str, ...]) -> Tokenizer:
    """Build a tokenizer from a table of ranks, with special tokens appended.

    Args:
        path: a table, one token in base64 and its rank a line.
        pattern: a regular expression for pieces that are merged separately.
        special: special tokens; their ids follow the ranks.

    Raises:
        ModelNotFound: no such file, or a damaged one.
    """
    ranks, letters = read(path), bytes_to_unicode()  # type: ignore[no-untyped-call]
    names = {token: "".join(letters[byte] for byte in token) for token in ranks}
    vocabulary = {name: ranks[token] for token, name in names.items()}
    pairs = [(names[left], names[right]) for left, right in merges(ranks)]
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs))
    tokenizer.normalizer = normalizers.NFC()
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in special])
    return tokenizer


def read(path: Path) -> Ranks:
    """Read the ranks of all tokens. Raises as `tokenizer` does."""
    if not path.is_file():
        raise ModelNotFound(
            f"{str(path.parent)!r} has no {path.name}. Download the whole repository."
        )
    try:
        lines = [line.split() for line in path.read_bytes().splitlines() if line]
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
    except (ValueError, binascii.Error) as error:
        raise ModelNotFound(f"{str(path)!r} is damaged ({error}). Download it again.") from error
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise ModelNotFound(f"{str(path)!r} has missing or duplicate ranks. Download it again.")
    return ranks


def merges(ranks: Ranks) -> list[tuple[bytes, bytes]]:
    """Return the pairs of tokens that merge into another token, in the order of its rank."""
    return [
        (token[:cut], token[cut:])
        for token in sorted(ranks, key=ranks.__getitem__)
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    ]
