"""Sheet of the small pictures in scenes.

    python -m training.pictures --bootstrap DIR --tabler DIR

The directories are the unpacked npm packages ``bootstrap-icons`` and ``@tabler/icons`` (both MIT);
the coloured pictures are Noto Color Emoji's (Debian's ``fonts-noto-color-emoji``, OFL). The sheet
has a column for every name and a row for every drawing of it; cells without one are transparent.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator
from pathlib import Path

import resvg_py
from PIL import Image, ImageDraw, ImageFont

from foveate_demo.scenes.pictures import SHEET, SIDE
from foveate_demo.scenes.words import PICTURES

EMOJI_FONT = Path("/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf")
# One for every name, in the order of PICTURES; a dot for none.
EMOJI = (  # noqa: SIM905
    "✈ ⚓ 🍎 🎈 🔔 🚲 🐦 ⛵ 📕 🚌 🦋 🎂 📷 🕯 🚗 🐱 🪑 🕒 ☁ 👑 ☕ 🐶 🚪 👂 👁 🐟 🚩 🌻 🎸 🔨 ✋ "
    "🎩 ❤ 🚁 🏠 🔑 🪜 . 🍃 ⚡ 🔒 🌙 ⛰ 🍄 ✏ 📱 🎹 🍕 🧩 . 🚀 ✂ 🛡 🚢 👕 👞 💀 🐍 ❄ "
    "🕷 ⭐ ☀ 🗡 ⛺ 🚜 🚆 🌳 🚚 🎺 ☂ ⌚ 🛞"
).split()
OTHER_NAMES = {  # names of icons that differ from ours
    "bus": "bus-front",
    "car": "car-front",
    "cup": "cup-hot",
    "door": "door-closed",
    "train": "train-front",
    "hand": "hand-stop",
    "airplane": "plane",
    "bicycle": "bike",
    "boat": "sailboat",
    "hat": "chef-hat",
    "house": "home",
    "lightning": "bolt",
    "rain": "cloud-rain",
    "snow": "snowflake",
    "watch": "device-watch",
    "bird": "feather",
    "chair": "armchair",
}
NEVER = {("bird", "feather")}


def _svg(path: Path) -> Image.Image:
    """Render a drawing in black on a transparent ground, with a margin of a twelfth."""
    inner = round(SIDE * 5 / 6)
    text = path.read_text().replace("currentColor", "black")
    drawn = Image.open(io.BytesIO(resvg_py.svg_to_bytes(svg_string=text, width=inner)))
    full = Image.new("RGBA", (SIDE, SIDE))
    full.paste(drawn.convert("RGBA"), ((SIDE - drawn.width) // 2, (SIDE - drawn.height) // 2))
    return full


def _emoji(character: str) -> Image.Image:
    """Render a coloured picture, cropped to its ink and centred."""
    big = Image.new("RGBA", (160, 160))
    face = ImageFont.truetype(str(EMOJI_FONT), 109)
    ImageDraw.Draw(big).text((10, 10), character, font=face, embedded_color=True)
    cut = big.crop(big.getbbox())
    side = max(cut.size) * 12 // 11
    full = Image.new("RGBA", (side, side))
    full.paste(cut, ((side - cut.width) // 2, (side - cut.height) // 2))
    return full.resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def drawings(
    name: str, emoji: str, bootstrap: Path, tabler: Path
) -> Iterator[tuple[int, Image.Image]]:
    """Yield the drawings of a name, each with its row of the sheet."""
    for row, folder, ending in (
        (0, bootstrap / "icons", ""),
        (1, bootstrap / "icons", "-fill"),
        (2, tabler / "icons" / "outline", ""),
        (3, tabler / "icons" / "filled", ""),
    ):
        for called in (name, OTHER_NAMES.get(name, name)):
            path = folder / f"{called}{ending}.svg"
            if path.exists() and (name, called) not in NEVER:
                yield row, _svg(path)
                break
    if emoji != ".":
        yield 4, _emoji(emoji)


def main() -> None:
    """Draw the sheet, and write it into the package."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bootstrap", type=Path, required=True)
    parser.add_argument("--tabler", type=Path, required=True)
    a = parser.parse_args()
    sheet = Image.new("RGBA", (SIDE * len(PICTURES), SIDE * 5))
    for column, (name, emoji) in enumerate(zip(PICTURES, EMOJI, strict=True)):
        rows = []
        for row, drawn in drawings(name, emoji, a.bootstrap, a.tabler):
            sheet.paste(drawn, (column * SIDE, row * SIDE))
            rows.append(row)
        print(f"{name:12} {rows}")
        if not rows:
            raise SystemExit(f"no drawing of {name!r}")
    sheet.save(SHEET, optimize=True)
    print(f"{SHEET}: {sheet.size}, {SHEET.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
