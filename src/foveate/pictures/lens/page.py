"""What the lens's page is told, and the page.

The prompt is shown as words one by one, and images as the model sees them. Kept sets and scores
come in few bytes. Masks of a method at up to eight budgets share a byte for every head and token. A
token that is kept at a small budget is mostly kept at larger ones, too, so few of the 256 bytes
occur, and zlib makes them short. Scores take a byte each: attention is heavy-tailed, so its steps
are even on the square root of (score - lowest) / (highest - lowest), head by head, and finer for
small scores than for large ones.
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
from foveate.pictures.lens.chosen import Answers, Choice, LensAnswer, LensPrompt
from foveate.pictures.shown import rendered, shown, text_of, without_folders
from foveate.pictures.views import View

TimeLine = Sequence[tuple[float, Sequence[int]]]
"""Of each frame of a video when it is shown, in seconds, and its tokens."""


def page(data: Mapping[str, Any]) -> str:
    """Return the page of what :func:`page_data` returns, as HTML: everything in one file.

    Its content security policy lets it load nothing, and run and style itself by the script and the
    style sheet below alone, which it knows by their hashes.
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
    said: Answers | None = None,
    line: TimeLine = (),
) -> dict[str, Any]:
    """All that the page shows.

    ``packet`` holds masks and scores (:mod:`foveate.pictures.lens.page`): ``kept``, ``protected``
    and ``computed`` say where a method's planes begin in it, ``scores`` where a choice's table
    does; None where nothing was scored. ``computed`` is None where all layers computed all tokens,
    ``answer`` where nobody was asked.
    """
    packet = Packet()
    methods = [
        _method(choices, None if said is None else said.choices[place], packet)
        for place, choices in enumerate(seen.choices)
    ]
    return {
        "model": model,
        "tokens": len(words),
        "layers": [
            {"index": index, "heads": heads}
            for index, heads in zip(seen.layers, seen.heads, strict=True)
        ],
        "note": shown(note),
        "answer": None if said is None else _answer(said.full),
        "parts": parts(words, views),
        "images": [data_uri(view.seen) for view in views],
        "frames": [{"time": round(time, 3), "places": list(places)} for time, places in line],
        "methods": methods,
        "packet": packet.text(),
    }


def _method(
    choices: Sequence[Choice], answers: Sequence[LensAnswer] | None, packet: Packet
) -> Mapping[str, Any]:
    packed, which = tables([choice.scores for choice in choices])
    places = [packet.add(table(one)) for one in packed]
    return {
        "name": shown(without_folders(label(choices[0].policy))),
        "kept": [packet.add(plane) for plane in planes([c.kept for c in choices])],
        "protected": [packet.add(x) for x in planes([c.scores.isposinf() for c in choices])],
        "computed": _computed(choices, packet),
        "choices": [
            {
                "spec": choice.policy.spec,
                "budget": budget_of(choice.policy) or "",
                "scores": None if bool(choice.scores.isnan().all()) else places[place],
                "answer": None if answers is None else _answer(answers[step]),
            }
            for step, (choice, place) in enumerate(zip(choices, which, strict=True))
        ],
    }


def _computed(choices: Sequence[Choice], packet: Packet) -> list[int] | None:
    if all(choice.computed is None for choice in choices):
        return None
    masks = [torch.ones_like(c.kept) if c.computed is None else c.computed for c in choices]
    return [packet.add(plane) for plane in planes(masks)]


def _answer(answer: LensAnswer) -> dict[str, Any]:
    return {"text": shown(answer.text, keep="\n\t"), "cut": answer.cut, "same": answer.same}


def parts(words: Sequence[Word], views: Sequence[View]) -> list[dict[str, Any]]:
    """The prompt in its order: runs of text, and views of images where they begin.

    What stands between the rows of an image, as Pixtral's line breaks do, follows it. Images whose
    tokens have no known place come first.
    """
    view_of = {place: i for i, view in enumerate(views) for place in view.places}
    whole_views = [_view(i, view) for i, view in enumerate(views) if view.grid is None]
    begun: set[int] = set()
    for at, word in enumerate(words):
        number = view_of.get(at)
        if number is None:
            if not whole_views or "words" not in whole_views[-1]:
                whole_views.append({"words": []})
            text = shown(word.text, keep="\n\t")  # which the page has signs for
            whole_views[-1]["words"].append({"at": at, "text": text, "special": word.special})
        elif number not in begun:
            begun.add(number)
            whole_views.append(_view(number, views[number]))
    return whole_views


def _view(number: int, view: View) -> dict[str, Any]:
    rows, columns = (0, 1) if view.grid is None else (view.grid.rows, view.grid.columns)
    shape = {"rows": rows, "columns": columns, "places": list(view.places)}
    return {"image": number, "name": view.name, **shape}


def _hash(text: str) -> str:
    """As a content security policy names what it allows."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode()}"


LEVELS = 254  # the code of a head's highest score
NO_SCORE = 255


class Packet:
    """Byte strings one after the other, equal ones once."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._places: dict[bytes, int] = {}

    def add(self, data: bytes) -> int:
        """Where the bytes stand."""
        if data not in self._places:
            self._places[data] = len(self._data)
            self._data += data
        return self._places[data]

    def text(self) -> str:
        """All of them, as a zlib stream in base64."""
        return base64.b64encode(zlib.compress(bytes(self._data), level=9)).decode("ascii")


def planes(masks: Sequence[Bool[Tensor, "r t"]]) -> list[bytes]:
    """A byte for every row and token, with a bit for each of eight masks, the lowest for the first;
    a plane for every eight masks.
    """
    whole = np.stack([mask.numpy() for mask in masks])
    return [
        np.packbits(whole[start : start + 8], axis=0, bitorder="little").tobytes()
        for start in range(0, len(whole), 8)
    ]


def table(scores: Float[Tensor, "r t"]) -> bytes:
    """Lowest and highest score of each row, as pairs of little-endian float32, then the codes."""
    codes, low, high = in_bytes(scores)
    ends = torch.stack([low, high], -1).numpy().astype("<f4")
    return ends.tobytes() + codes.numpy().tobytes()


def in_bytes(
    scores: Float[Tensor, "r t"],
) -> tuple[UInt8[Tensor, "r t"], Float[Tensor, "r"], Float[Tensor, "r"]]:
    """Codes, and the lowest and highest finite score of each row (0 where there is none)."""
    finite = scores.isfinite()
    none = ~finite.any(-1)
    low = scores.masked_fill(~finite, torch.inf).amin(-1).masked_fill(none, 0.0)
    high = scores.masked_fill(~finite, -torch.inf).amax(-1).masked_fill(none, 0.0)
    span = (high - low).clamp_min(torch.finfo(torch.float32).tiny)
    share = (scores.masked_fill(~finite, 0.0) - low[:, None]).clamp_min(0) / span[:, None]
    codes = (LEVELS * share.clamp_max(1).sqrt()).round().to(torch.uint8)
    return codes.masked_fill(~finite, NO_SCORE), low, high


def tables(scores: Sequence[Float[Tensor, "r t"]]) -> tuple[list[Tensor], list[int]]:
    """As few tables as hold what was scored at each budget, and which one each budget reads.

    A score that does not depend on the budget has one: what is protected at one budget has its
    score from another.
    """
    made: list[Tensor] = []
    which = []
    for mine in scores:
        for place, other in enumerate(made):
            both = mine.isfinite() & other.isfinite()
            if torch.equal(mine[both], other[both]):
                made[place] = torch.where(mine.isfinite(), mine, other)
                break
        else:
            place = len(made)
            made.append(mine)
        which.append(place)
    return made, which


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
