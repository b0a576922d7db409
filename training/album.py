"""Draws the three images that come with the package: the same fields, of three people.

    python -m training.album

The fonts are Lato and Caladea, which the eye was not trained on.
"""

from __future__ import annotations

from random import Random

from foveate.demo.album import FOLDER
from foveate.demo.scenes import owned
from training.fonts import unseen_fonts

PAGES = (
    ("Anna", [("Room", "214"), ("Birthday", "14 March 1987"), ("City", "Lisbon"),
              ("Sport", "rowing")]),
    ("Bruno", [("City", "Vienna"), ("Sport", "tennis"), ("Room", "371"),
               ("Birthday", "2 November 1964")]),
    ("Nora", [("Birthday", "23 August 1992"), ("Room", "508"), ("Sport", "cycling"),
              ("City", "Dublin")]),
)  # fmt: skip


def main() -> None:
    """Writes the images."""
    wanted = ("Lato-Regular.ttf", "Caladea-Regular.ttf")
    fonts = tuple(path for path in unseen_fonts() if path.name in wanted)
    FOLDER.mkdir(exist_ok=True)
    for number, (owner, facts) in enumerate(PAGES, 1):
        owned(Random(number), fonts, owner, facts, rows=7).image.save(FOLDER / f"{number}.png")


if __name__ == "__main__":
    main()
