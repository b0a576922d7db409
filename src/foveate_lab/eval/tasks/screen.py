"""Visible elements of a page in Chromium, and the samples that ask for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from random import Random
from typing import Any, NamedTuple

from PIL import Image

from foveate.prompts.sample import Sample, Span
from foveate_lab.eval.benchmarks.screenspot import ASK

SIZE = 800, 600  # pixels; 192 tokens in the demo model, 580 at one token per 28 x 28 pixels

_SEEN = """(kinds) => {
  const within = (b) => b.left >= 0 && b.top >= 0 && b.right <= innerWidth
    && b.bottom <= innerHeight && b.width >= 4 && b.height >= 4;
  const shown = (b) => b.right > 0 && b.bottom > 0 && b.left < innerWidth && b.top < innerHeight;
  const onTop = (e, b) => {
    const top = document.elementFromPoint((b.left + b.right) / 2, (b.top + b.bottom) / 2);
    return top !== null && (top === e || e.contains(top));
  };
  const words = (e) => e.innerText || e.value || e.querySelector("img")?.alt || "";
  return Object.entries(kinds).flatMap(([kind, selector]) =>
    [...document.querySelectorAll(selector)].flatMap((e) => {
      const boxes = [...e.getClientRects()];
      if (!boxes.some(shown)) return [];
      const [b] = boxes;
      const whole = boxes.length === 1 && within(b) && onTop(e, b);
      const box = [Math.floor(b.left), Math.floor(b.top), Math.ceil(b.right), Math.ceil(b.bottom)];
      return [{kind, text: words(e).trim(), box: whole ? box : null}];
    }));
}"""


class Target(NamedTuple):
    """Element on a page: its kind, its text, and its box (left, top, right, bottom)."""

    kind: str
    text: str
    box: tuple[int, int, int, int]


class Shot(NamedTuple):
    """Screenshot of a page (PNG), an instruction, its target, and the task's facts."""

    png: bytes
    instruction: str
    target: Target
    facts: Mapping[str, Any]


def targets(page: Any, kinds: Mapping[str, str]) -> list[Target]:
    """Return the elements that are fully visible and unique in kind and text.

    Args:
        page: a page of playwright.
        kinds: CSS selectors by kind.
    """
    elements = page.evaluate(_SEEN, kinds)
    counts = Counter((element["kind"], element["text"]) for element in elements)
    return [
        Target(element["kind"], element["text"], tuple(element["box"]))
        for element in elements
        if element["box"] and element["text"] and counts[element["kind"], element["text"]] == 1
    ]


def chosen(r: Random, candidates: Sequence[Target]) -> Target:
    """Draw a target; each kind present is equally likely."""
    kind = r.choice(list(dict.fromkeys(target.kind for target in candidates)))
    return r.choice([target for target in candidates if target.kind == kind])


def screen_samples(shots: Sequence[Shot]) -> Iterator[Sample]:
    """Yield samples in ScreenSpot's form; the patches under the target are the evidence."""
    for number, (png, instruction, target, facts) in enumerate(shots):
        left, top, right, bottom = target.box
        with Image.open(BytesIO(png)) as image:
            screenshot = image.convert("RGB")
        yield Sample(
            name=str(number),
            question=ASK.format(instruction),
            answers=(str([left, top, right, bottom]),),
            images=(screenshot,),
            evidence=(Span(target.text, 0, target.box),),
            facts={"box": (left, top, right - left, bottom - top), "type": target.kind, **facts},
            labels={"type": target.kind},
        )
