"""Three images that come with Foveate, and a question about them."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

QUESTION = "What is Bruno's birthday?"
FOLDER = Path(__file__).parent / "album"


def images() -> list[Image.Image]:
    """The images, in order."""
    return [Image.open(path).convert("RGB") for path in sorted(FOLDER.glob("*.png"))]
