"""Answers without any plug-in: transformers' classes, and a block around ``generate``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

import foveate


class Said(NamedTuple):
    text: str
    prompt_tokens: int
    tokens: int
    kv_bytes: int
    kv_bytes_full: int


def said(
    directory: Path, spec: str, prompt: str, pictures: Sequence[Path], tokens: int = 6
) -> Said:
    """To a prompt in which "<image>" stands for each picture."""
    model = AutoModelForImageTextToText.from_pretrained(directory).eval()
    processor = AutoProcessor.from_pretrained(directory)
    images = [Image.open(path).convert("RGB") for path in pictures]
    inputs = processor(text=prompt, images=images or None, return_tensors="pt")
    begin = inputs["input_ids"].shape[1]
    with foveate.compress(model, spec) as session:
        out = model.generate(**inputs, max_new_tokens=tokens, do_sample=False)
        stats = session.stats
    text = processor.decode(out[0, begin:], skip_special_tokens=True).strip()
    return Said(text, begin, out.shape[1] - begin, stats.bytes_after, stats.bytes_before)
