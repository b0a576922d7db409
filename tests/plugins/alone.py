"""Answers without any plug-in: transformers' classes, and a block around ``generate``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

import foveate
from tests.answers import certain


class Said(NamedTuple):
    """``sure`` is the beginning of the text that is the same on any CPU."""

    text: str
    sure: str
    prompt_tokens: int
    tokens: int
    kv_bytes: int
    kv_bytes_full: int

    def is_said(self, text: str) -> bool:
        """Whether another run may have come to that text."""
        return text == self.text if self.sure == self.text else text.startswith(self.sure)


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
        how = {"output_logits": True, "return_dict_in_generate": True}
        out = model.generate(**inputs, max_new_tokens=tokens, do_sample=False, **how)
        stats = session.stats
    ids = out.sequences[0, begin:]
    text, sure = (
        processor.decode(ids[:end], skip_special_tokens=True).strip()
        for end in (len(ids), certain(out.logits))
    )
    return Said(text, sure, begin, len(ids), stats.bytes_after, stats.bytes_before)
