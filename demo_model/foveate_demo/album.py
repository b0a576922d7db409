"""Three images that come with Foveate, a question about them, and its answer."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

QUESTION = "What is Bruno's birthday?"
ANSWER = "Bruno's birthday: 2 November 1964"  # what the second image says
FOLDER = Path(__file__).parent / "album"


def images() -> list[Image.Image]:
    """The images, in order."""
    return [Image.open(path).convert("RGB") for path in sorted(FOLDER.glob("*.png"))]
