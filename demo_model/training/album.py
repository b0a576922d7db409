"""The three images that ship with the package: the same fields, of three people.

    python -m training.album

The fonts are Lato and Caladea, on which the vision tower was not trained. The seed is the first one
with which the full cache and `recommended` at 10 % both give the exact answer: an example that
works, not a measurement.
"""

from __future__ import annotations

from random import Random

from foveate_demo.album import FOLDER
from foveate_demo.scenes import owned
from training.fonts import unseen_fonts

ROWS = 12
SEED = 1  # with 0, both read the year as 1966
PAGES = (
    (
        "Anna",
        [
            ("Room", "214"),
            ("Birthday", "14 March 1987"),
            ("City", "Lisbon"),
            ("Sport", "rowing"),
            ("Phone", "555 0182"),
            ("Profession", "architect"),
        ],
    ),
    (
        "Bruno",
        [
            ("City", "Vienna"),
            ("Sport", "tennis"),
            ("Profession", "baker"),
            ("Room", "371"),
            ("Birthday", "2 November 1964"),
            ("Phone", "555 0147"),
        ],
    ),
    (
        "Nora",
        [
            ("Birthday", "23 August 1992"),
            ("Phone", "555 0163"),
            ("Room", "508"),
            ("Profession", "pilot"),
            ("Sport", "cycling"),
            ("City", "Dublin"),
        ],
    ),
)


def main() -> None:
    """Draw the images, and write them into the package."""
    names = ("Lato-Regular.ttf", "Caladea-Regular.ttf")
    fonts = tuple(path for path in unseen_fonts() if path.name in names)
    FOLDER.mkdir(exist_ok=True)
    for number, (owner, facts) in enumerate(PAGES, 1):
        owned(Random(100 * SEED + number), fonts, owner, facts, rows=ROWS).image.save(
            FOLDER / f"{number}.png"
        )


if __name__ == "__main__":
    main()
