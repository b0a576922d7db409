"""Fonts of pages, from Debian's packages, and families that are held out for the test."""

from __future__ import annotations

from pathlib import Path

FOLDERS = (Path("/usr/share/fonts/truetype"), Path("/usr/share/fonts/opentype"))
HELD_OUT = ("lato", "cantarell", "caladea", "jetbrains", "quicksand", "gentium")
OTHERS = (  # noqa: SIM905
    "symbol dingbat math emoji icon standardsym d050000l z003 initials display keyboard drawing "
    "outline condensed thin hairline extralight ultralight black compressed capitals bebas overlay "
    "wide"
).split()
LATIN_NOTO = ("notosans-", "notoserif-", "notosansmono-", "notomono-")


def fonts_in(*folders: Path) -> list[Path]:
    """Return the fonts of ordinary text in folders and those below them."""
    found = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            name = path.name.lower()
            other = any(o in name for o in OTHERS)
            other |= name.startswith("noto") and not name.startswith(LATIN_NOTO)
            if path.suffix.lower() in {".ttf", ".otf"} and not other:
                found[name] = path
    return list(found.values())


def training_fonts() -> tuple[Path, ...]:
    """Return all installed fonts except those of the test."""
    return tuple(p for p in fonts_in(*FOLDERS) if not any(h in str(p).lower() for h in HELD_OUT))


def unseen_fonts() -> tuple[Path, ...]:
    """Return the fonts that are held out for the test."""
    return tuple(p for p in fonts_in(*FOLDERS) if any(h in str(p).lower() for h in HELD_OUT))
