"""Input tensors of a model, encoded from text, images and videos."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from foveate.errors import InvalidInput
from foveate.hf.model.devices import input_device, is_outline
from foveate.hf.model.modality import visual_token_ids
from foveate.prompts.images import to_image
from foveate.prompts.special_tokens import Literals, tokenizer_of
from foveate.prompts.videos import video_inputs

TOKEN_TYPES = ("mm_token_type_ids", "token_type_ids")
"""Keys of token types in a processor's output; models need them for the whole conversation."""
_FAILURES = (ValueError, TypeError, KeyError, IndexError, AttributeError)
"""Errors that processors raise for texts and images that they cannot read."""


def encode(
    model: PreTrainedModel,
    processor: Any,
    text: str,
    images: Sequence[Any] = (),
    videos: Sequence[Any] = (),
    *,
    literals: Literals | None = None,
    add_special_tokens: bool | None = None,
    nested: bool = True,
) -> dict[str, Any]:
    """Return a processor's output for one text, on the CPU; :func:`moved` moves it to the model.

    Args:
        model: the model that will read it.
        processor: its processor or tokenizer.
        text: a rendered text, with a placeholder for each image and video.
        images: images of any form (:func:`foveate.prompts.images.to_image`), in the text's order.
        videos: clips or frames.
        literals: the processor's literals, if the text has marks for special tokens.
        add_special_tokens: let the tokenizer add its special tokens; None: the processor's default.
        nested: pass the images as one sample, as in a conversation, instead of one sample each.
            Some processors give an image that is alone more tokens.

    Returns:
        input_ids [1, tokens], attention_mask, and the processor's tensors of images and videos.

    Raises:
        InvalidInput: an image or video cannot be read, the processor or model takes none, or the
            processor refuses the text.
    """
    visual = bool(images or videos)
    if visual:
        _check_processor_sees(processor)
    pixels = [to_image(image, f"images[{number}]") for number, image in enumerate(images)]
    arguments: dict[str, Any] = video_inputs(processor, videos)
    if pixels:
        arguments["images"] = [pixels] if nested else pixels
    if add_special_tokens is not None:
        arguments["add_special_tokens"] = add_special_tokens
    reader = processor
    if literals is not None and len(literals.split(text)) > 1:
        reader = literals.reader(processor)
    try:
        inputs = dict(reader(text=[text], return_tensors="pt", **arguments))
    except InvalidInput:
        raise
    except _FAILURES as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InvalidInput(
            f"{type(processor).__name__} cannot read this prompt: {reason}"
        ) from error
    inputs.pop("video_metadata", None)
    if visual:
        check_model_sees(model, inputs)
    return inputs


def text_ids(processor: Any, text: str, *, add_special_tokens: bool) -> list[int]:
    """Return the token ids of a text without images; it may have marks for special tokens."""
    tokenizer = Literals(processor).reader(tokenizer_of(processor))
    return list(tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"])


def moved(inputs: Mapping[str, Any], model: PreTrainedModel) -> dict[str, Any]:
    """Return inputs with their tensors on the model's device, and floats in its dtype.

    For a model without weights, whose prompts are only counted, tensors stay on the CPU.
    """
    device = torch.device("cpu") if is_outline(model) else input_device(model)
    return {
        name: value.to(device, model.dtype if value.is_floating_point() else value.dtype)
        if isinstance(value, Tensor)
        else value
        for name, value in inputs.items()
    }


def check_model_sees(model: PreTrainedModel, inputs: Mapping[str, Any]) -> None:
    """Raise InvalidInput if the images among a prompt's inputs do not reach the model."""
    name, known = type(model).__name__, visual_token_ids(model.config)
    pixels = set(inputs) - {"input_ids", "attention_mask", *TOKEN_TYPES}
    if not known and not pixels & set(inspect.signature(model.forward).parameters):
        raise InvalidInput(
            f"a {name} reads text only, and the prompt has images or videos: leave them out, or "
            "use a vision-language model with its processor."
        )
    ids = inputs["input_ids"]
    if not pixels or (known and not bool(torch.isin(ids, ids.new_tensor(known)).any())):
        raise InvalidInput(
            f"the images or videos of this prompt would not be seen by the {name}: the chat "
            "template or the processor drops them. Put them into a user's message, and use the "
            "model's own processor (AutoProcessor.from_pretrained)."
        )


def _check_processor_sees(processor: Any) -> None:
    if tokenizer_of(processor) is processor:
        raise InvalidInput(
            f"a {type(processor).__name__} reads text only, and the prompt has images or videos: "
            "use a vision-language model's processor (AutoProcessor.from_pretrained) instead."
        )
