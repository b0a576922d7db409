"""Three images that come with Foveate, a question about them, and its answer.

They are an example that was chosen: pages were drawn with the seeds 0, 1, ..., and these are the
first whose question the full cache answers letter by letter and `recommended` at 10 % answers the
same. How often that is so is counted over 100 other questions, in ``figures.json``.
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from foveate.errors import ModelNotFound

QUESTION = "What is Bruno's birthday?"
ANSWER = "Bruno's birthday: 2 November 1964"  # what the second image says
FOLDER = Path(__file__).parent / "album"


def images() -> list[Image.Image]:
    """The images, in order.

    Raises:
        ModelNotFound: they come with the demo's weights, which are not installed.
    """
    found = [Image.open(path).convert("RGB") for path in sorted(FOLDER.glob("*.png"))]
    if not found:
        raise ModelNotFound(
            f"{FOLDER} is missing: the demo's images come with its weights. Run `pip install "
            "'foveate[demo]'`, or name a model of yours with --model."
        )
    return found
