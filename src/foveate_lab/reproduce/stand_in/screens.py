"""ScreenSpot-v2: drawn screens with words to click on."""

from __future__ import annotations

from foveate_demo.scenes import BUILT_IN, CELL, WIDTH, form, some_facts
from foveate_lab.reproduce.stand_in.files import Writer

SOURCES = {"mobile": "ios", "desktop": "windows", "web": "shop"}


def screenspot_v2(writer: Writer) -> None:
    """Write screenspot_*_v2.json of three platforms and screenspotv2_image/; text and icons in
    turn.
    """
    for screen, source in SOURCES.items():
        records = []
        for number in range(max(writer.count, 2)):
            r = writer.random(f"{screen}/{number}")
            page = form(r, (BUILT_IN,), some_facts(r, 4), 6)
            name, _, row = r.choice(page.facts)
            image = f"{screen}_{number}.png"
            writer.image(f"screenspotv2_image/{image}", page.image)
            records.append(
                {
                    "img_filename": image,
                    "bbox": [0, row * CELL, WIDTH, CELL],
                    "instruction": f"open {name.lower()}",
                    "data_type": "icon" if number % 2 else "text",
                    "data_source": source,
                }
            )
        writer.json(f"screenspot_{screen}_v2.json", records)
