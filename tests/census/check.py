"""Runs the tiny models as they come: ``python -m tests.census.check [NAME ...]``.

One line a type: the steps that work, or the step that fails and why.
"""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import logging

from . import IMAGE_TEXT, TEXT, NotBuilt, Specimen, build

SECONDS = 60
BATCH = (23, 31, 40)
WITH_IMAGE = (40, 52, 60)
STEPS = ("text", "batch", "image", "images", "mixed", "video", "turn", "turns")


def main(names: list[str]) -> None:
    """Checks the named types, or all."""
    logging.set_verbosity_error()
    for name in names or [*IMAGE_TEXT, *TEXT]:
        print(f"{name:24s} {verdict(name)}", flush=True)


def verdict(name: str) -> str:
    """What works for a type, and each step that does not."""
    try:
        with limited(SECONDS):
            specimen = build(name)
            found = [(step, run(specimen, step)) for step in STEPS if step in available(specimen)]
    except NotBuilt as reason:
        return f"NOT BUILT: {reason}"
    except Exception as error:
        return f"FAILS building: {failing(error)}"
    works = [step for step, problem in found if problem is None]
    return "; ".join(
        [" ".join(["ok", *works]), *[f"FAILS {step}: {why}" for step, why in found if why]]
    )


def run(specimen: Specimen, step: str) -> str | None:
    """Runs one step; why it fails, if it does."""
    try:
        CHECKS[step](specimen)
    except TimeoutError:
        raise
    except Exception as error:
        return failing(error)
    return None


def available(specimen: Specimen) -> set[str]:
    """The steps a type has."""
    entry = specimen.entry
    steps = set() if specimen.needs_image else {"text", "batch"}
    if not (entry.always or entry.single or specimen.model.config.is_encoder_decoder):
        steps |= {"turn", "turns"}
    if specimen.takes_images:
        steps |= {"image", "mixed"}
    if specimen.takes_images > 1:
        steps.add("images")
    return steps | ({"video"} if specimen.takes_video else set())


def text(specimen: Specimen) -> None:
    """One row of text."""
    answer(specimen, specimen.prompt((40,)))


def batch(specimen: Specimen) -> None:
    """Rows of text, padded on the left: each answers as it does alone."""
    _, together = answer(specimen, specimen.prompt(BATCH))
    _, alone = answer(specimen, specimen.prompt(BATCH[:1]))
    same(together[0], alone[0], "a padded row differs from the row alone")


def image(specimen: Specimen) -> None:
    """One image in one row, which matters."""
    matters(specimen, images=1)


def images(specimen: Specimen) -> None:
    """Two images and text between."""
    matters(specimen, images=2)


def mixed(specimen: Specimen) -> None:
    """A padded batch of rows with an image each."""
    _, together = answer(specimen, specimen.prompt(WITH_IMAGE, images=1))
    _, alone = answer(specimen, specimen.prompt(WITH_IMAGE[:1], images=1))
    same(together[0], alone[0], "a padded row with an image differs from the row alone")


def video(specimen: Specimen) -> None:
    """A video in one row, which matters."""
    matters(specimen, video=True)


def turn(specimen: Specimen) -> None:
    """A second turn on the cache of the first gives what the whole conversation gives."""
    continues(specimen, (60,))


def turns(specimen: Specimen) -> None:
    """The same in a padded batch."""
    continues(specimen, (60, 70))


def continues(specimen: Specimen, lengths: tuple[int, ...]) -> None:
    """Raises unless a second turn on the cache is the same as the whole conversation."""
    inputs = specimen.prompt(lengths, images=min(specimen.takes_images, 1))
    first = generate(specimen, inputs, return_dict_in_generate=True)
    new = first.sequences[:, -5:]
    whole = specimen.whole(inputs, new, 7)
    _, expected = answer(specimen, whole)
    cached = specimen.second_turn(inputs, new, 7) or {}
    _, found = answer(specimen, {**cached, "past_key_values": first.past_key_values})
    same(found, expected, "a second turn on the cache differs from the whole conversation")


def matters(specimen: Specimen, images: int = 0, video: bool = False) -> None:
    """Other pixels must give other logits; near the end, for models that only look back so far."""
    length = (44,) if images == 1 else (72,)
    inputs = specimen.prompt(length, images=images, video=video)
    _, base = answer(specimen, inputs)
    other = specimen.prompt(length, images=images, video=video, seed=1)
    words = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
    pixels = {key: value for key, value in other.items() if key not in words}
    _, changed = answer(specimen, {**inputs, **pixels})
    if (base[0] - changed[0]).abs().max() < 1e-4:
        raise ValueError("the pixels do not matter")


def answer(specimen: Specimen, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Five new tokens and the logits of the first of them, ``[rows, vocabulary]``."""
    result = generate(specimen, inputs, return_dict_in_generate=True, output_logits=True)
    if getattr(result, "logits", None) is None:  # a family that denoises: its tokens must do
        return result.sequences[:, -5:], result.sequences[:, -5:].float()
    if not torch.isfinite(result.logits[0]).all():
        raise ValueError("the logits are not finite")
    return result.sequences[:, -5:], result.logits[0]


def generate(specimen: Specimen, inputs: dict[str, Any], **settings: Any) -> Any:
    """A stock greedy run."""
    torch.manual_seed(0)  # some draw even so
    with torch.no_grad():
        return specimen.model.generate(**inputs, max_new_tokens=5, do_sample=False, **settings)


def same(found: Tensor, expected: Tensor, message: str) -> None:
    """Raises if the logits differ by more than rounding, which recurrences add up."""
    gap = (found - expected).abs().max().item()
    if gap > 1e-3 * max(1.0, expected.abs().max().item()):
        raise ValueError(f"{message} (by {gap:.2g})")


def failing(error: Exception) -> str:
    """The error and its innermost line, in one line."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{where.filename.rsplit('/', 1)[-1]}:{where.lineno}"
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text} ({place})"


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Ends what takes longer with a `TimeoutError`."""

    def stop(_signal: int, _frame: Any) -> None:
        raise TimeoutError(f"longer than {seconds} seconds")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


CHECKS = {
    "text": text,
    "batch": batch,
    "image": image,
    "images": images,
    "mixed": mixed,
    "video": video,
    "turn": turn,
    "turns": turns,
}

if __name__ == "__main__":
    main(sys.argv[1:])
