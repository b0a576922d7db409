"""What the page is told, and the page."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from foveate.backends.hf.modality import Grid
from foveate.eval.contenders import budget_of, label
from foveate.report.lens.chosen import Choice, Seen
from foveate.report.lens.packed import Packet, planes, table, tables
from foveate.report.lens.prompt import Word, data_uri
from foveate.report.shown import shown
from foveate.report.template import rendered, text_of


def page(
    model: str,
    seen: Seen,
    words: Sequence[Word],
    images: Sequence[Image.Image],
    grids: Sequence[Grid],
) -> str:
    """The HTML: everything in one file. Its content security policy lets it load nothing, and run
    and style itself by the script and the style sheet below alone, which it knows by their hashes.
    """
    style, script = text_of("lens.css"), text_of("lens.js")
    return rendered(
        "the lens",
        "lens.html.j2",
        model=model,
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        data=page_data(model, seen, words, images, grids),
    )


def page_data(
    model: str,
    seen: Seen,
    words: Sequence[Word],
    images: Sequence[Image.Image],
    grids: Sequence[Grid],
) -> dict[str, Any]:
    """All that the page shows.

    ``packet`` holds masks and scores (:mod:`foveate.report.lens.packed`): ``kept`` and
    ``protected`` say where a method's planes begin in it, ``scores`` where a choice's table does;
    None where nothing was scored.
    """
    packet = Packet()
    methods = [_method(choices, packet) for choices in seen.choices]
    return {
        "model": model,
        "tokens": len(words),
        "layers": [
            {"index": index, "heads": heads}
            for index, heads in zip(seen.layers, seen.heads, strict=True)
        ],
        "parts": parts(words, grids),
        "images": [data_uri(image) for image in images],
        "methods": methods,
        "packet": packet.text(),
    }


def _method(choices: Sequence[Choice], packet: Packet) -> Mapping[str, Any]:
    found, which = tables([choice.scores for choice in choices])
    places = [packet.add(table(one)) for one in found]
    return {
        "name": shown(label(choices[0].policy)),
        "kept": [packet.add(plane) for plane in planes([c.kept for c in choices])],
        "protected": [
            packet.add(plane) for plane in planes([c.scores.isposinf() for c in choices])
        ],
        "choices": [
            {
                "spec": choice.policy.spec,
                "budget": budget_of(choice.policy) or "",
                "scores": None if bool(choice.scores.isnan().all()) else places[place],
            }
            for choice, place in zip(choices, which, strict=True)
        ],
    }


def parts(words: Sequence[Word], grids: Sequence[Grid]) -> list[dict[str, Any]]:
    """The prompt in its order: runs of text, and images where they begin.

    What stands between the rows of an image, as Pixtral's line breaks do, follows it.
    """
    image_of = {place: i for i, grid in enumerate(grids) for place in grid.places}
    found: list[dict[str, Any]] = []
    begun: set[int] = set()
    for at, word in enumerate(words):
        image = image_of.get(at)
        if image is None:
            if not found or "words" not in found[-1]:
                found.append({"words": []})
            text = shown(word.text, keep="\n\t")  # which the page has signs for
            found[-1]["words"].append({"at": at, "text": text, "special": word.special})
        elif image not in begun:
            begun.add(image)
            grid = grids[image]
            found.append(
                {
                    "image": image,
                    "rows": grid.rows,
                    "columns": grid.columns,
                    "places": list(grid.places),
                }
            )
    return found


def _hash(text: str) -> str:
    """As a content security policy names what it allows."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode()}"
