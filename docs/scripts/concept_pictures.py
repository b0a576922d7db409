"""Generator of docs/concepts/*.svg, the pictures of docs/concepts.md.

python docs/scripts/concept_pictures.py

Pairs that are dark or missing in them are those that policies drop from a demo prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from cells import GREY, bars, data_uri, dots, jpeg, label, shade, svg
from kept import QUESTION, Kept, apply_policies, example

FOLDER = Path(__file__).parents[1] / "concepts"
OTHER = "What is Bruno's phone?"
BY_KEYS, BY_QUESTION = "keydiff:budget=20%,recent=0.25", "snapkv:budget=20%,window=0.25"
SIZE, GAP = (240.0, 180.0), 20.0  # of an image that is one of several, and between them
IMAGE = "page"


def pictures() -> dict[str, str]:
    """Draw every picture, by file name."""
    return {
        "pairs.svg": pairs(),
        "budgets.svg": budgets(),
        "questions.svg": questions(),
        "branches.svg": branches(),
    }


def pairs() -> str:
    """Draw the complete cache as a sheet of pairs, the kept ones blue."""
    here, found = example(), apply_policies([BY_KEYS])[BY_KEYS]
    layers, heads, tokens = found.kept.shape
    rows = layers * heads
    wide, high = 2.4 * tokens, 3.0 * rows
    left, top = 90.0, 30.0
    sheet = f'<rect x="{left}" y="{top}" width="{wide:g}" height="{high:g}" fill-opacity=".15"/>'
    drawn = (
        f'<image x="{left}" y="{top}" width="{wide:g}" height="{high:g}" '
        'preserveAspectRatio="none" style="image-rendering:pixelated" '
        f'href="{data_uri(dots(found.kept.flatten(0, 1)), "png")}"/>'
    )
    text = left + wide * len(here.grid.indices) / tokens
    parts = [
        sheet,
        drawn,
        f'<path stroke="{GREY}" d="M{text:g} {top - 8}V{top + high + 4:g}"/>',
        label(left, top - 10, f"the image's {len(here.grid.indices)} tokens"),
        label(text + 4, top - 10, "text"),
        label(left - 8, top + 10, "first layer", anchor="end"),
        label(left - 8, top + high - 2, "last layer", anchor="end"),
        label(
            left,
            top + high + 20,
            f"{tokens} tokens in {heads} KV heads of {layers} layers: {found.kept.numel():,} "
            f"pairs; blue: the {int(found.kept.sum()):,} that are kept",
        ),
    ]
    return svg("A cache, pair by pair", left + wide + 30, top + high + 32, parts)


def budgets() -> str:
    """Draw one method at three budgets, and one budget shared out by three methods."""
    of_one = [f"mixkv:budget={share},window=0.25" for share in ("50%", "20%", "10%")]
    shared = {
        "the same for every head": "mixkv:budget=20%,window=0.25",
        "within each layer": "mixkv(window=0.25)+adakv:budget=20%",
        "over all layers": "prefixkv:budget=20%,when=after_prefill",
    }
    found = apply_policies([*of_one, *shared.values()])
    images = [(spec.split("=")[1].split(",")[0], found[spec]) for spec in of_one]
    parts = [*_panels(images, 24)]
    top = SIZE[1] + 76
    for column, (title, spec) in enumerate(shared.items()):
        left = column * (SIZE[0] + GAP)
        parts.append(label(left, top - 8, f"20 %, {title}"))
        parts += bars(found[spec].heads, (left, top, SIZE[0], 90), float(found[spec].heads.mean()))
    return svg("Budgets: how much, and where", _wide(3), top + 100, parts)


def questions() -> str:
    """Draw what two methods keep for two questions, and without a question."""
    texts = {f"“{QUESTION}”": QUESTION, f"“{OTHER}”": OTHER, "before any question": ""}
    found = {title: apply_policies([BY_QUESTION, BY_KEYS], text) for title, text in texts.items()}
    parts = []
    for row, (spec, title) in enumerate(
        {BY_QUESTION: "snapkv, by the last queries", BY_KEYS: "keydiff, by keys"}.items()
    ):
        top = 44 + row * (SIZE[1] + 64)
        first, *others = (by_spec[spec] for by_spec in found.values())
        other, none = (f"{100 * _common(first, kept):.0f} %" for kept in others)
        caption = (
            f"{title}, 20 %. Of the image's pairs kept for the first question, "
            f"{other} are kept for the second, and {none} before any."
        )
        parts.append(label(0, top - 28, caption))
        panels = [(heading, by_spec[spec]) for heading, by_spec in found.items()]
        parts += _panels(panels, top, image=not row)
    return svg("Two questions, and none", _wide(3), 2 * (SIZE[1] + 64), parts)


def _common(first: Kept, second: Kept) -> float:
    """Return the share of the image's pairs kept in ``first`` that ``second`` keeps too."""
    indices = list(example().grid.indices)
    before, after = first.kept[..., indices], second.kept[..., indices]
    return float((before * after).sum() / before.sum())


def branches() -> str:
    """Draw one prefill, and what four policies keep of it."""
    specs = {
        "snapkv": BY_QUESTION,
        "keydiff": BY_KEYS,
        "divprune": "divprune:budget=20%",
        "lookm": "lookm:budget=20%",
    }
    found = apply_policies(list(specs.values()))
    wide, high = SIZE
    everything = Kept(found[BY_KEYS].kept.clamp(1, 1))
    x, y = wide + 3 * GAP, (2 * (high + 34) - high) / 2
    parts = [*_panel("read once, all of it", everything, 0, y + 10, image=True)]
    for panel, (name, spec) in enumerate(specs.items()):
        left, top = x + panel % 2 * (wide + GAP), 24 + panel // 2 * (high + 34)
        parts += _panel(f"{name}, 20 %", found[spec], left, top)
    for top in (24 + high / 2, 24 + high / 2 + high + 34):
        line = f"M{wide + 6:g} {y + 10 + high / 2:g}C{x - 20:g} {y + 10 + high / 2:g} "
        curve = f"{wide + 20:g} {top:g} {x - 8:g} {top:g}"
        parts.append(f'<path d="{line}{curve}" fill="none" stroke="{GREY}" stroke-width="2"/>')
    return svg("One prefill, four policies", x + 2 * wide + GAP, 2 * (high + 34), parts)


def _panels(found: Sequence[tuple[str, Kept]], top: float, *, image: bool = True) -> Iterator[str]:
    """Draw images side by side, with titles above.

    ``image``: define the image in the first panel; needed once per file, later panels refer to it.
    """
    for column, (title, kept) in enumerate(found):
        left = column * (SIZE[0] + GAP)
        yield from _panel(title, kept, left, top, image=image and not column)


def _panel(
    title: str, found: Kept, left: float, top: float, *, image: bool = False
) -> Iterator[str]:
    wide, high = SIZE
    if image:
        address = data_uri(jpeg(example().image), "jpeg")
        size = f'width="{wide:g}" height="{high:g}"'
        yield f'<defs><image id="{IMAGE}" {size} href="{address}"/></defs>'
    yield label(left, top - 8, title)
    yield f'<use href="#{IMAGE}" x="{left:g}" y="{top:g}"/>'
    yield from shade(example().grid, found.tokens, (left, top, wide, high))


def _wide(images: int) -> float:
    return images * (SIZE[0] + GAP) - GAP


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, drawn in pictures().items():
        (FOLDER / name).write_text(drawn + "\n", encoding="utf-8")
