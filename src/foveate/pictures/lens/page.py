"""HTML page of the lens, and its data.

The prompt is shown word by word, images as the model sees them. Masks and scores are encoded in few
bytes. Masks of a method at up to eight budgets share a byte for every head and token. A token that
is kept at a small budget is usually kept at larger ones, so few of the 256 bytes occur, and zlib
compresses them well. A score takes one byte. Attention is heavy-tailed, so the steps are uniform in
the square root of (score - lowest) / (highest - lowest) of a head: finer for small scores.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from PIL import Image
from torch import Tensor

from foveate.compression.labels import budget_of, label
from foveate.pictures.escaping import escape_hidden, rendered, text_of, without_folders
from foveate.pictures.lens.choices import Answers, Choice, LensAnswer, LensPrompt
from foveate.pictures.views import View

TimeLine = Sequence[tuple[float, Sequence[int]]]
"""Frames of a video: display time in seconds, and tokens."""


def page(data: Mapping[str, Any]) -> str:
    """Return the page for the result of :func:`page_data`, as one HTML file.

    Its content security policy allows no loading, and only its own script and style sheet, by their
    hashes.
    """
    style, script = (text_of(f"foveate.pictures/lens.{kind}") for kind in ("css", "js"))
    return rendered(
        "the lens",
        "foveate.pictures/lens.html.j2",
        model=data["model"],
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        data=data,
    )


def page_data(
    model: str,
    seen: LensPrompt,
    words: Sequence[Word],
    views: Sequence[View],
    note: str = "",
    answers: Answers | None = None,
    line: TimeLine = (),
) -> dict[str, Any]:
    """Return the page's data as a JSON object.

    ``packet`` contains masks and scores (:mod:`foveate.pictures.lens.page`). ``kept``,
    ``protected`` and ``computed`` are the offsets of a method's planes in it, ``scores`` is the
    offset of a choice's table, or None without scores. ``computed`` is None if all layers computed
    all tokens, ``answer`` is None without answers.
    """
    packet = Packet()
    methods = [
        _method(choices, None if answers is None else answers.choices[number], packet)
        for number, choices in enumerate(seen.choices)
    ]
    return {
        "model": model,
        "tokens": len(words),
        "layers": [
            {"index": index, "heads": heads}
            for index, heads in zip(seen.layers, seen.heads, strict=True)
        ],
        "note": escape_hidden(note),
        "answer": None if answers is None else _answer(answers.full),
        "parts": parts(words, views),
        "images": [data_uri(view.seen) for view in views],
        "frames": [{"time": round(time, 3), "places": list(tokens)} for time, tokens in line],
        "methods": methods,
        "packet": packet.text(),
    }


def _method(
    choices: Sequence[Choice], answers: Sequence[LensAnswer] | None, packet: Packet
) -> Mapping[str, Any]:
    packed, indices = tables([choice.scores for choice in choices])
    offsets = [packet.add(table(scores)) for scores in packed]
    return {
        "name": escape_hidden(without_folders(label(choices[0].policy))),
        "kept": [packet.add(plane) for plane in planes([c.kept for c in choices])],
        "protected": [packet.add(x) for x in planes([c.scores.isposinf() for c in choices])],
        "computed": _computed(choices, packet),
        "choices": [
            {
                "spec": choice.policy.spec,
                "budget": budget_of(choice.policy) or "",
                "scores": None if bool(choice.scores.isnan().all()) else offsets[index],
                "answer": None if answers is None else _answer(answers[step]),
            }
            for step, (choice, index) in enumerate(zip(choices, indices, strict=True))
        ],
    }


def _computed(choices: Sequence[Choice], packet: Packet) -> list[int] | None:
    if all(choice.computed is None for choice in choices):
        return None
    masks = [torch.ones_like(c.kept) if c.computed is None else c.computed for c in choices]
    return [packet.add(plane) for plane in planes(masks)]


def _answer(answer: LensAnswer) -> dict[str, Any]:
    return {"text": escape_hidden(answer.text, keep="\n\t"), "cut": answer.cut, "same": answer.same}


def parts(words: Sequence[Word], views: Sequence[View]) -> list[dict[str, Any]]:
    """Return the prompt in order: runs of text, and views of images at their first token.

    Tokens between the rows of an image, such as Pixtral's line breaks, follow it. Images without
    grids come first.
    """
    view_of = {token: i for i, view in enumerate(views) for token in view.tokens}
    prompt_parts = [_view(i, view) for i, view in enumerate(views) if view.grid is None]
    begun: set[int] = set()
    for at, word in enumerate(words):
        number = view_of.get(at)
        if number is None:
            if not prompt_parts or "words" not in prompt_parts[-1]:
                prompt_parts.append({"words": []})
            text = escape_hidden(word.text, keep="\n\t")  # the page shows these two with signs
            prompt_parts[-1]["words"].append({"at": at, "text": text, "special": word.special})
        elif number not in begun:
            begun.add(number)
            prompt_parts.append(_view(number, views[number]))
    return prompt_parts


def _view(number: int, view: View) -> dict[str, Any]:
    rows, columns = (0, 1) if view.grid is None else (view.grid.rows, view.grid.columns)
    shape = {"rows": rows, "columns": columns, "places": list(view.tokens)}
    return {"image": number, "name": view.name, **shape}


def _hash(text: str) -> str:
    """Return a text's hash in the form of a content security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode()}"


LEVELS = 254  # the code of a head's highest score
NO_SCORE = 255


class Packet:
    """Concatenation of byte strings; equal ones are stored once."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._offsets: dict[bytes, int] = {}

    def add(self, data: bytes) -> int:
        """Append the bytes, unless they are there already; return their offset."""
        if data not in self._offsets:
            self._offsets[data] = len(self._data)
            self._data += data
        return self._offsets[data]

    def text(self) -> str:
        """Return all bytes as a zlib stream in base64."""
        return base64.b64encode(zlib.compress(bytes(self._data), level=9)).decode("ascii")


def planes(masks: Sequence[Bool[Tensor, "r t"]]) -> list[bytes]:
    """Pack masks into planes: a byte for every row and token has a bit for each of eight masks.

    The first mask is the lowest bit; there is one plane for every eight masks.
    """
    stacked = np.stack([mask.numpy() for mask in masks])
    return [
        np.packbits(stacked[start : start + 8], axis=0, bitorder="little").tobytes()
        for start in range(0, len(stacked), 8)
    ]


def table(scores: Float[Tensor, "r t"]) -> bytes:
    """Encode scores: lowest and highest of each row as little-endian float32 pairs, then codes."""
    codes, low, high = in_bytes(scores)
    ends = torch.stack([low, high], -1).numpy().astype("<f4")
    return ends.tobytes() + codes.numpy().tobytes()


def in_bytes(
    scores: Float[Tensor, "r t"],
) -> tuple[UInt8[Tensor, "r t"], Float[Tensor, "r"], Float[Tensor, "r"]]:
    """Return codes, and the lowest and highest finite score of each row (0 without any)."""
    finite = scores.isfinite()
    none = ~finite.any(-1)
    low = scores.masked_fill(~finite, torch.inf).amin(-1).masked_fill(none, 0.0)
    high = scores.masked_fill(~finite, -torch.inf).amax(-1).masked_fill(none, 0.0)
    span = (high - low).clamp_min(torch.finfo(torch.float32).tiny)
    share = (scores.masked_fill(~finite, 0.0) - low[:, None]).clamp_min(0) / span[:, None]
    codes = (LEVELS * share.clamp_max(1).sqrt()).round().to(torch.uint8)
    return codes.masked_fill(~finite, NO_SCORE), low, high


def tables(scores: Sequence[Float[Tensor, "r t"]]) -> tuple[list[Tensor], list[int]]:
    """Merge the scores at all budgets into few tables; return them and each budget's table index.

    Scores that do not depend on the budget need one table: a token that is protected at one budget
    has its score from another.
    """
    merged: list[Tensor] = []
    indices = []
    for scores_here in scores:
        for index, other in enumerate(merged):
            both = scores_here.isfinite() & other.isfinite()
            if torch.equal(scores_here[both], other[both]):
                merged[index] = torch.where(scores_here.isfinite(), scores_here, other)
                break
        else:
            index = len(merged)
            merged.append(scores_here)
        indices.append(index)
    return merged, indices


LONGEST = 8  # maximum number of tokens in one character
_BROKEN = "\ufffd"  # replacement character of incomplete bytes


class Word(NamedTuple):
    """Token: its text, or the name of a special token.

    A token that continues a character of an earlier token has no text.
    """

    text: str
    special: bool


def words(tokenizer: Any, ids: Sequence[int]) -> list[Word]:
    """Return the tokens with their spaces; a character of several tokens belongs to the first."""
    special = set(tokenizer.all_special_ids)
    before = _plain(tokenizer)
    word_list: list[Word] = []
    while len(word_list) < len(ids):
        at = len(word_list)
        if ids[at] in special:
            word_list.append(Word(str(tokenizer.convert_ids_to_tokens(ids[at])), special=True))
            continue
        text, count = _decode_first(tokenizer, before, ids[at : at + LONGEST])
        word_list += [Word(text, special=False), *[Word("", special=False)] * (count - 1)]
    return word_list


def _plain(tokenizer: Any) -> list[int]:
    """Return a token to put in front of others before decoding.

    Some tokenizers drop the space of a token at the start of a text.
    """
    return list(tokenizer.encode("a", add_special_tokens=False))[-1:]


def _decode_first(tokenizer: Any, before: list[int], ids: Sequence[int]) -> tuple[str, int]:
    """Return the text of the first token, and the number of tokens that its character takes."""
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


SIDE = 768  # maximum pixels of the longer side


def data_uri(image: Image.Image) -> str:
    """Encode an image without metadata as a data URI: PNG, or JPEG if that is smaller."""
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
