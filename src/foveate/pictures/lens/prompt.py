"""The prompt as the page shows it: its words one by one, its images as the model sees them."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any, NamedTuple

from PIL import Image

LONGEST = 8  # the most tokens that one character is tried to be put together from
_BROKEN = "\ufffd"  # what bytes that are no whole character decode to


class Word(NamedTuple):
    """A token: its text, or the name of a special one. What only goes on with a character that an
    earlier token began has no text.
    """

    text: str
    special: bool


def words(tokenizer: Any, ids: Sequence[int]) -> list[Word]:
    """The tokens, each with its own spaces; a character of several tokens stands at the first."""
    special = set(tokenizer.all_special_ids)
    before = _plain(tokenizer)
    word_list: list[Word] = []
    while len(word_list) < len(ids):
        at = len(word_list)
        if ids[at] in special:
            word_list.append(Word(str(tokenizer.convert_ids_to_tokens(ids[at])), special=True))
            continue
        text, count = _whole(tokenizer, before, ids[at : at + LONGEST])
        word_list += [Word(text, special=False), *[Word("", special=False)] * (count - 1)]
    return word_list


def _plain(tokenizer: Any) -> list[int]:
    """A token to decode behind: alone, some tokenizers swallow the space that a token begins with,
    as at the start of a text.
    """
    return list(tokenizer.encode("a", add_special_tokens=False))[-1:]


def _whole(tokenizer: Any, before: list[int], ids: Sequence[int]) -> tuple[str, int]:
    """The text of the first token, and of how many tokens it is: more than one where it takes
    several to make a character.
    """
    head = _decoded(tokenizer, before)
    texts = [
        _decoded(tokenizer, [*before, *ids[:n]]).removeprefix(head) for n in range(1, len(ids) + 1)
    ]
    for count, text in enumerate(texts, start=1):
        if _BROKEN not in text:
            return text, count
    return texts[0], 1


def _decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(
        list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    return text


SIDE = 768  # pixels of the longer side, at most


def data_uri(image: Image.Image) -> str:
    """The image without what a file knows about it: as PNG, or as JPEG where that is smaller."""
    image = image.convert("RGB")
    image.thumbnail((SIDE, SIDE))
    kinds = {
        "png": _encoded(image, "PNG", optimize=True),
        "jpeg": _encoded(image, "JPEG", quality=88),
    }
    kind, data = min(kinds.items(), key=lambda item: len(item[1]))
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"


def _encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()
