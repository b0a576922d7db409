"""Images of families a to e, and what their prompts need besides."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, nn

from .media import Picture
from .sizes import AFTER, BEFORE, IMAGE
from .specimen import Inputs


def chameleon_words(count: int = 64) -> dict[str, int]:
    """Chameleon's words: the placeholder and one for each picture code."""
    letters = [
        str(code).translate(str.maketrans("0123456789", "ABCDEFGHIJ")) for code in range(count)
    ]
    codes = {f"IMGIMG{letter}Z": 90 + index for index, letter in enumerate(letters)}
    return {"<image>": IMAGE, **codes}


def emu3_words(count: int = 64) -> dict[str, int]:
    """Emu3's words: the placeholder, the end of a line and one for each picture code."""
    codes = {f"<|visual token {code:06d}|>": 90 + code for code in range(count)}
    return {"<image>": IMAGE, "<|extra_200|>": 12, **codes}


def two_resolutions(_index: int, generator: Generator) -> Picture:
    """An image for a coarse and a fine tower."""
    return {
        "pixel_values": torch.randn(3, 12, 12, generator=generator),
        "high_res_pixel_values": torch.randn(3, 48, 48, generator=generator),
    }


def fewer_queries(model: Any) -> None:
    """Upstream fixes 144 queries in its code: nine are left of them."""
    tower = model.model.vision_tower
    weight = tower.query_768_resolution.weight[:9].clone()
    tower.query_768_resolution = nn.Embedding.from_pretrained(weight)


def ernie_types(inputs: Inputs) -> Inputs:
    """Experts are chosen by kind: borders of an image count as image there."""
    ids = inputs["input_ids"]
    kinds = inputs["mm_token_type_ids"].clone()
    kinds[(ids == BEFORE) | (ids == AFTER)] = 1
    return inputs | {"moe_mm_token_type_ids": kinds}
