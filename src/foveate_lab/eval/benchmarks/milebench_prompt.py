"""MileBench's prompts: how they are worded, and what is cut where they are too long.

Song et al., arXiv:2404.18532, utils.py of https://github.com/MileBench/MileBench, as CSP and LOOK-M
run it: 4,096 tokens, of which an image counts 576. The instruction always stays. Of the rest whole
pieces are kept from the end, a piece being the text between two images, and each image is kept as
long as it fits; only a last piece that alone is too long loses its beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from PIL import Image

from foveate.data import Record
from foveate.errors import InvalidInput
from foveate.prompts.sample import PLACE, Sample

UNLETTERED = "GPR1200"  # has more choices than there are letters


class Cut(NamedTuple):
    """Limit of a prompt's tokens, and the tokens that an image counts."""

    limit: int | None
    image_tokens: int


class Fitting(NamedTuple):
    """Context that fits, and its images."""

    context: str
    images: tuple[Image.Image, ...]


def read_context(
    meta: Record, record: Record, choices: Sequence[str], name: str, combined: bool
) -> tuple[str, str]:
    """Return the sample's instruction, and its context with choices and places for images, or with
    the images' names if ``combined`` joins them to one.
    """
    instance, instructions = record.record("task_instance"), meta.texts("task_instruction")
    number = record.index("task_instruction_id", len(instructions))
    text = instance.text("context")
    if choices:
        lines = [
            choice if name == UNLETTERED else f"{chr(ord('A') + i)}. {choice}"
            for i, choice in enumerate(choices)
        ]
        text += "\nChoice list: \n" + "\n".join(lines) + "\nYour answer is: "
    for i in range(1, len(instance.texts("images_path")) + 1):
        for what in ("image", "table"):
            text = text.replace(f"{{{what}#{i}}}", f"<Image {i}> " if combined else PLACE)
    return instructions[number], text


def parts(instruction: str, context: str, combined: bool) -> dict[str, Any]:
    """Return the sample's text up to the last image, that image's place, and the text behind it;
    one joined image stands first.
    """
    if combined:
        return {"context": PLACE, "between": "\n", "question": f"{instruction}\n{context}"}
    before, mark, after = f"{instruction}\n{context}".rpartition(PLACE)
    return {"context": before, "between": mark, "question": after}


def fitted(tokenizer: Any, sample: Sample) -> Sample:
    """Return the sample cut to its limit, with a new line between images that follow each other.

    Raises:
        InvalidInput: its instruction alone is too long.
    """
    instruction, context, combined = (
        sample.facts[name] for name in ("instruction", "context", "combined")
    )
    cut, images = sample.facts["cut"], sample.images
    if cut.limit is not None:
        room = cut.limit - len(tokens_of(tokenizer, instruction))
        if room < 1:
            raise InvalidInput(
                f"sample {sample.name}: its instruction alone has longest_prompt={cut.limit} "
                "tokens or more. Give a larger longest_prompt."
            )
        if combined:
            context = _end(tokenizer, context, room)
        else:
            context, images = shortened(tokenizer, context, images, room, cut.image_tokens)
    # what LLaVA's worker does with images side by side
    context = context.replace(PLACE * 2, f"{PLACE}\n{PLACE}\n")
    return replace(sample, images=images, **parts(instruction, context, combined))


def shortened(
    tokenizer: Any, context: str, images: Sequence[Image.Image], room: int, image_tokens: int
) -> Fitting:
    """Return the end of a context, in whole pieces, that has no more than ``room`` tokens."""
    left, kept, kept_images = list(images), list[str](), list[Image.Image]()
    used, begins = 0, False  # with an image
    for piece in reversed(context.split(PLACE)):
        used += len(tokens_of(tokenizer, piece))
        if used > room:
            kept = kept or [_end(tokenizer, piece, room)]
            break
        kept, begins = [piece, *kept], False
        if used + image_tokens > room:
            break
        if left:
            kept_images, begins = [left.pop(), *kept_images], True
            used += image_tokens
    return Fitting(PLACE * begins + PLACE.join(kept), tuple(kept_images))


def _end(tokenizer: Any, text: str, room: int) -> str:
    ids = tokens_of(tokenizer, text)
    return text if len(ids) <= room else str(tokenizer.decode(ids[-room:]))


def tokens_of(tokenizer: Any, text: str) -> list[int]:
    """Return a text's tokens, without those that begin or end a prompt."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids
