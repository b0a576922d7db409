"""ScreenSpot-v2: where on a screen is what is to be clicked?

Wu et al., arXiv:2410.23218; its forms are in screenspot_forms.py. Asked in
the words of MixKV's authors (https://github.com/sakura-gui/GUI-grounding-MixKV), who bound images
to 2,000,000 to 4,800,000 pixels: ``min_pixels`` and ``max_pixels``. They read an answer that is one
list of four numbers, in pixels of the resized image, and nothing else; here every form is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from foveate.data import Folder, Record
from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.folder import Benchmark
from foveate_lab.eval.benchmarks.screenspot_forms import sources_of
from foveate_lab.eval.metrics.grounding import WHOLE, Found, located

ASK = (
    'Where on this screen is what the instruction "{}" refers to? Answer with its box as '
    "[x1, y1, x2, y2]."
)
MIXKV = (
    "Outline the position corresponding to the instruction: {}. The output should be only "
    "[x1,y1,x2,y2]."
)
Coordinates = Literal["model", "share", "thousand", "resized", "image"]
"""Of an answer: shares of 1 or of 1000 of what the model sees of the image, pixels as the processor
made them, or of the file.
"""
MODELS: dict[str, Coordinates] = {
    "glm4v": "thousand",
    "glm4v_moe": "thousand",
    "internvl": "thousand",
    "qwen2_vl": "thousand",
    "qwen2_5_vl": "resized",
    "qwen3_5": "thousand",
    "qwen3_5_moe": "thousand",
    "qwen3_vl": "thousand",
    "qwen3_vl_moe": "thousand",
}
"""In what models of these types answer, unless the numbers are shares of 1."""


def inside(prediction: str, sample: Sample) -> float:
    """Return 1 if the predicted point, or predicted box's centre, is in the right box, else 0."""
    spot = located(prediction)
    if spot is None:
        return 0.0
    x, y = clicked(spot, sample.images[0].size, sample.facts)
    left, top, width, height = sample.facts["box"]
    return float(left <= x <= left + width and top <= y <= top + height)


def clicked(spot: Found, size: tuple[int, int], facts: Mapping[str, Any]) -> tuple[float, float]:
    """Return the point that an answer names on an image of that size, in its pixels.

    ``facts`` may have the ``coordinates`` that the task was given, the ``model_type``, the sizes
    that the processor made of the images (``seen``), and the box of the image that it leaves of it,
    or pads it to (``view``).
    """
    (x, y), (wide, high) = spot.centre, size
    scale = _scale(spot, facts)
    if scale in WHOLE:
        left, top, right, bottom = facts.get("view") or (0, 0, wide, high)
        across, down = x / WHOLE[scale], y / WHOLE[scale]
        return left + across * (right - left), top + down * (bottom - top)
    seen = facts.get("seen")
    if scale == "resized" and seen:
        return x * wide / seen[0][0], y * high / seen[0][1]
    return x, y


def _scale(spot: Found, facts: Mapping[str, Any]) -> str:
    """Return the unit of coordinates: the task's, else the answer's own, else the model type's."""
    unit = facts.get("coordinates", "model")
    if unit != "model":
        return str(unit)
    if spot.scale in ("share", "percent", "loc"):
        return str(spot.scale)
    return MODELS.get(facts.get("model_type", "")) or spot.scale or "resized"


@Benchmark(
    "screenspot_v2",
    lambda screen=None, **own: sources_of(screen),
    metric=inside,
    longest=128,
    divisible=False,
    summary="Where on a screen is what is to be clicked? The centre has to be in the box.",
)
def screenspot_v2(
    folder: Folder,
    *,
    prompt: Literal["mixkv", "plain"] = "mixkv",
    coordinates: Coordinates = "model",
    screen: Literal["mobile", "desktop", "web"] | None = None,
) -> Iterator[Sample]:
    """Yield instructions about screenshots, answered by the place to click."""
    words = MIXKV if prompt == "mixkv" else ASK
    numbers = Counter[str]()
    for record, images in sources_of(screen).rows(folder):
        name, box = record.text("screen"), record.numbers("bbox", 4)
        if screen in (None, name):
            yield Sample(
                name=f"{name}/{numbers[name]}",
                question=words.format(record.text("instruction")),
                answers=(str(list(box)),),
                images=images,
                facts={"box": box, "coordinates": coordinates},
                labels=_labels(name, record),
            )
            numbers[name] += 1


def _labels(screen: str, record: Record) -> dict[str, str]:
    """Return screen and type, and both as the class that papers have a column for."""
    kind = record.text("data_type")
    source = {"source": record.text("data_source")} if record.has("data_source") else {}
    return {"class": f"{screen} {kind}", "screen": screen, "type": kind, **source}
