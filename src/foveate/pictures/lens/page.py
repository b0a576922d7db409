"""What the page is told, and the page."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from foveate.compression.labels import budget_of, label
from foveate.pictures.lens.chosen import Answers, Choice, LensAnswer, LensPrompt
from foveate.pictures.lens.packed import Packet, planes, table, tables
from foveate.pictures.lens.prompt import Word, data_uri
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

    ``packet`` holds masks and scores (:mod:`foveate.pictures.lens.packed`): ``kept``, ``protected``
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
