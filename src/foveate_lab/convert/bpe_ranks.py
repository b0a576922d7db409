"""Tokenizers that are kept as a table of byte strings with their ranks (``qwen.tiktoken``)."""

from __future__ import annotations

import base64
import binascii
from itertools import pairwise
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from foveate.errors import ModelNotFound

Ranks = dict[bytes, int]


def tokenizer(path: Path, pattern: str, special: tuple[str, ...]) -> Tokenizer:
    """A tokenizer whose tokens are the ranks, with special ones behind them.

    Args:
        path: a table, one token in base64 and its rank a line.
        pattern: a regular expression for what is merged on its own.
        special: further tokens, whose ids follow the ranks.

    Raises:
        ModelNotFound: no such file, or a damaged one.
    """
    ranks, letters = read(path), _letters()
    names = {token: "".join(letters[byte] for byte in token) for token in ranks}
    pairs = [(names[left], names[right]) for left, right in merges(ranks)]
    made = Tokenizer(models.BPE({names[token]: rank for token, rank in ranks.items()}, pairs))
    made.normalizer = normalizers.NFC()
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(name, normalized=False) for name in special])
    return made


def read(path: Path) -> Ranks:
    """The ranks of all tokens. Raises as `tokenizer` does."""
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
        raise ModelNotFound(f"{str(path)!r} lacks ranks or has some twice. Download it again.")
    return ranks


def merges(ranks: Ranks) -> list[tuple[bytes, bytes]]:
    """The pair that each token of several bytes is made of, in the order of ranks."""
    longer = sorted((token for token in ranks if len(token) > 1), key=ranks.__getitem__)
    pairs = (_last_two(token, ranks) for token in longer)
    return [pair for pair in pairs if pair is not None]


def _last_two(token: bytes, ranks: Ranks) -> tuple[bytes, bytes] | None:
    """What merging by lower ranks alone leaves of a token; None if more than two parts are left."""
    parts = [token[i : i + 1] for i in range(len(token))]
    own = ranks[token]
    while len(parts) > 2:
        scores = [ranks.get(a + b, own) for a, b in pairwise(parts)]
        best = min(scores)
        if best >= own:
            return None
        at = scores.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]


def _letters() -> list[str]:
    """The character that stands for each byte in byte-level vocabularies: itself if it is printable
    and no space, otherwise the next one from 256 on.
    """
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    other = iter(range(256, 512))
    return [chr(byte if byte in plain else next(other)) for byte in range(256)]
