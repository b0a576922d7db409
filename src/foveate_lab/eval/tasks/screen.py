"""What stands where on a page that Chromium draws, and the samples that ask for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from random import Random
from typing import Any, NamedTuple

from PIL import Image

from foveate.prompts.sample import Sample, Span
from foveate_lab.eval.benchmarks.screenspot import ASK

SIZE = 800, 600  # pixels; 192 tokens of the demo model, 580 of a model with a token for 28 x 28

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
    """Something on a page: what it is, what it says, and its box (left, top, right, bottom)."""

    kind: str
    text: str
    box: tuple[int, int, int, int]


class Shot(NamedTuple):
    """A picture of a page (PNG), what is looked for on it, and the task's facts."""

    png: bytes
    instruction: str
    target: Target
    facts: Mapping[str, Any]


def targets(page: Any, kinds: Mapping[str, str]) -> list[Target]:
    """What is whole and uncovered on the screen and the only one there of its kind and text.

    Args:
        page: playwright's.
        kinds: a CSS selector for each kind.
    """
    elements = page.evaluate(_SEEN, kinds)
    often = Counter((one["kind"], one["text"]) for one in elements)
    return [
        Target(one["kind"], one["text"], tuple(one["box"]))
        for one in elements
        if one["box"] and one["text"] and often[one["kind"], one["text"]] == 1
    ]


def chosen(r: Random, shown_targets: Sequence[Target]) -> Target:
    """One of them; each kind that is there is as likely."""
    kind = r.choice(list(dict.fromkeys(one.kind for one in shown_targets)))
    return r.choice([one for one in shown_targets if one.kind == kind])


def screen_samples(shots: Sequence[Shot]) -> Iterator[Sample]:
    """The samples, in ScreenSpot's form; the patches that the target touches are the evidence."""
    for number, (png, instruction, target, facts) in enumerate(shots):
        left, top, right, bottom = target.box
        with Image.open(BytesIO(png)) as image:
            seen = image.convert("RGB")
        yield Sample(
            name=str(number),
            question=ASK.format(instruction),
            answers=(str([left, top, right, bottom]),),
            images=(seen,),
            evidence=(Span(target.text, 0, target.box),),
            facts={"box": (left, top, right - left, bottom - top), "type": target.kind, **facts},
            labels={"type": target.kind},
        )
