"""Picture of the frames that are left of a stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from foveate.errors import InvalidInput
from foveate.hf.attach.session import held_share
from foveate.hf.layer.support import foveate_layers, known_state
from foveate.hf.model.modality import visual_token_ids
from foveate.models.token_grids import image_tokens
from foveate.pictures import DrawnFrame, frames_picture
from foveate.prompts.images import image_list
from foveate.stream.reading import Frames, Words, of_frames, parts_of
from foveate.stream.storage import StreamFrame, StreamHeld

MOST = 24
"""Largest number of frames in a picture."""


def draw_frames(
    model: PreTrainedModel,
    processor: Any,
    words: Words,
    cache: DynamicCache,
    left: tuple[StreamFrame, ...],
    memory: StreamHeld,
    images: Iterator[Image.Image],
    first: int,
) -> Image.Image:
    """Draw the frames of ``images`` that are ``left``, at most the 24 with the largest shares.

    ``images`` are those of the stream from number ``first`` on.

    Raises:
        InvalidInput: none of the frames is left, or one has other tokens than when it was read.
    """
    best = sorted(left, key=lambda frame: -frame.kept)[:MOST]
    chosen = {frame.number: frame for frame in best}
    drawn, last = [], max(chosen, default=-1)
    for number, image in zip(range(first, last + 1), images, strict=False):
        if number in chosen:
            drawn.append(_drawn(model, processor, words, cache, chosen[number], image))
    if not drawn:
        raise InvalidInput(
            f"none of these frames is left: give those that see() read from frame {first} on, or "
            f"the number of the first one with first=. Left are {sorted(chosen)!s:.80}."
        )
    title = f"{len(left)} of {memory.images} frames left"
    excerpt = "" if len(drawn) == len(left) else f"; shown are {len(drawn)}"
    size = f"{memory.tokens:,.0f} of {memory.seen:,} tokens stored, {memory.bytes / 2**20:,.1f} MiB"
    return frames_picture(f"{title}{excerpt}", size, drawn)


def images_of(seen: Frames, fps: int | float | None) -> Iterator[Image.Image]:
    """Yield the images of whatever ``see`` reads; a video file is decoded as they are needed."""
    for part, _ in parts_of(seen, None, fps):
        yield from image_list(part, "frames")


def _drawn(
    model: PreTrainedModel,
    processor: Any,
    words: Words,
    cache: DynamicCache,
    frame: StreamFrame,
    image: Image.Image,
) -> DrawnFrame:
    """Encode a frame again, to find the cells of its tokens."""
    chunk = of_frames(model, processor, words, [image], frame.time, frame.number)
    inputs = {name: x.cpu() if isinstance(x, Tensor) else x for name, x in chunk.inputs.items()}
    vision = torch.isin(inputs["input_ids"][0], torch.tensor(visual_token_ids(model.config)))
    share = torch.zeros(chunk.tokens, dtype=torch.float32, device="cpu")
    share[vision] = _visual_shares(cache, frame, int(vision.sum()))
    tokens = image_tokens(vision, inputs, [image.size], model.config, processor)
    time = f"frame {frame.number}" if frame.time is None else f"{frame.time:.1f} s"
    caption = f"{time}, {frame.kept:.0%} kept"
    return DrawnFrame(caption, image, tokens[0] if tokens else None, share)


def _visual_shares(cache: DynamicCache, frame: StreamFrame, count: int) -> Float[Tensor, "t"]:
    """Return the share of KV heads that store each of a frame's ``count`` visual tokens.

    Raises:
        InvalidInput: the frame had another number of visual tokens.
    """
    state, share = known_state(cache), held_share(foveate_layers(cache))[0].cpu()
    shares = torch.zeros(count, dtype=torch.float32, device="cpu")
    images, visual = state.images(), state.tokens.vision
    if images is None or visual is None:
        return shares
    image, spot, is_visual = (table[0].cpu() for table in (*images, visual))
    own = image == frame.number
    # a frame's text has the spots after its visual tokens
    if frame.tokens < count or not torch.equal(spot[own] < count, is_visual[own]):
        raise InvalidInput(
            f"frame {frame.number} had another number of visual tokens when it was read than this "
            f"image ({count}): give the frames that see() read, with the same fps."
        )
    own &= is_visual
    shares[spot[own]] = share[own]
    return shares
