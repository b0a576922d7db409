"""ScreenSpot-v2: where on a screen is what is to be clicked?

Wu et al., arXiv:2410.23218. From https://huggingface.co/datasets/OS-Copilot/ScreenSpot-v2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from foveate.data import Folder
from foveate.eval.benchmarks.folder import benchmark
from foveate.eval.sample import Sample

ASK = (
    'Where on this screen is what the instruction "{}" refers to? Answer with its box as '
    "[x1, y1, x2, y2]."
)
SCREENS = ("mobile", "desktop", "web")


def inside(prediction: str, sample: Sample) -> float:
    """1 if the centre of the predicted box, or the predicted point, is in the right box.

    The first four numbers are a box, two alone a point; none above 1 means shares of the image.
    """
    numbers = [float(x) for x in re.findall(r"-?\d+(?:\.\d+)?", prediction)]
    if len(numbers) >= 4:
        x, y = (numbers[0] + numbers[2]) / 2, (numbers[1] + numbers[3]) / 2
    elif len(numbers) >= 2:
        x, y = numbers[:2]
    else:
        return 0.0
    wide, high = sample.images[0].size
    if max(numbers[:4]) <= 1:
        x, y = x * wide, y * high
    left, top, width, height = sample.facts["box"]
    return float(left <= x <= left + width and top <= y <= top + height)


@benchmark(
    "screenspot_v2",
    holds="screenspot_*_v2.json and screenspotv2_image/",
    metric=inside,
    divisible=False,
)
def screenspot_v2(folder: Folder) -> Iterator[Sample]:
    """Where on a screen is what is to be clicked? The centre has to be in the box."""
    for screen in SCREENS:
        for number, record in enumerate(folder.records(f"screenspot_{screen}_v2.json")):
            box = record.numbers("bbox", 4)
            yield Sample(
                name=f"{screen}/{number}",
                question=ASK.format(record.text("instruction")),
                answers=(str(list(box)),),
                images=(folder.image(record, "img_filename", "screenspotv2_image/{}", "{}"),),
                facts={"box": box, "type": record.text("data_type")},
            )
