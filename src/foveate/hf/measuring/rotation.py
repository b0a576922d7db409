"""A model's rotation of queries by their positions (RoPE), identified by reading a text at two
positions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedConfig

from foveate.cache.layer import Layer, check_finite
from foveate.errors import InvalidInput, UnsupportedModel
from foveate.hf.layer.support import check_model, text_config
from foveate.hf.measuring.record import record
from foveate.hf.model.internals import rope_offsets
from foveate.hf.model.module_state import restored_modules
from foveate.ops.rotation import Rotation, halves, neighbours, no_rotation, turned

log = logging.getLogger("foveate")
TOKENS, SHIFT = 32, 48  # of the text, and between its two positions
NEAR = 0.2  # relative error; of half precision some hundredths, of another rotation about 1


def rotations(model: nn.Module, inputs: Mapping[str, Any]) -> list[Rotation]:
    """Identify the rotation of every compressed layer, on some tokens of a prompt.

    Raises:
        InvalidInput: a prompt without ``input_ids``.
        UnsupportedModel: a rotation that Foveate does not know.
    """
    if not isinstance(ids := inputs.get("input_ids"), Tensor):
        raise InvalidInput("this profile is measured on texts: give input_ids of each prompt.")
    # a profile cannot represent frequencies that change with the prompt's length
    if kind := follows_length(text_config(check_model(model))):
        raise _unknown(model, f"its frequencies follow the prompt's length ({kind})")
    ids = ids[:1, -TOKENS:]
    base = torch.arange(ids.shape[1], device=ids.device)[None]
    try:
        first, second = (
            record(model, input_ids=ids, position_ids=positions, sums=False).layers
            for positions in (base, base + SHIFT)
        )
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        # it takes no position_ids, or no text that begins after position 0 (blocks by position)
        raise _unknown(model, repr(error)) from error
    candidates = list(_candidates(model, first[0].q.shape[-1]))
    return [_identify(model, a, b, candidates) for a, b in zip(first, second, strict=True)]


def rotations_if_counted(model: nn.Module, inputs: Mapping[str, Any]) -> list[Rotation]:
    """Identify the rotations like :func:`rotations`; return [] for an unknown one, or where
    positions do not count tokens.
    """
    if rope_offsets(model):  # M-RoPE: images take fewer positions than tokens
        return []
    try:
        with restored_modules(model):
            return rotations(model, inputs)
    except (InvalidInput, UnsupportedModel) as error:
        log.info("the profile will not have the rotation of keys: %s", error)
        return []


def counted(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Add positions that do not count padding to the inputs."""
    mask = inputs.get("attention_mask")
    if mask is None or bool(mask.bool().all()):
        return dict(inputs)
    return {**inputs, "position_ids": (mask.long().cumsum(-1) - 1).clamp_min(0)}


def _candidates(model: nn.Module, channels: int) -> Iterator[Rotation]:
    """Yield the model's stored frequencies, with each way to pair the first or (as in latent
    attention) the last of a query's channels; and the identity.
    """
    yield no_rotation(torch.device("cpu"))
    for name, buffer in model.named_buffers():
        if name.endswith("inv_freq") and "original" not in name and buffer.ndim == 1:
            frequencies = buffer.detach().float().cpu()
            for start in {0, max(0, channels - 2 * len(frequencies))}:
                yield halves(frequencies, start)
                yield neighbours(frequencies, start)


def _identify(
    model: nn.Module, first: Layer, second: Layer, candidates: list[Rotation]
) -> Rotation:
    """Return the rotation that maps the queries at the first position to those at the second."""
    check_finite(first, first.q.shape[2], "a profile")
    fitting = [
        rotation for rotation in candidates if 2 * len(rotation.frequencies) <= first.q.shape[-1]
    ]
    errors = [_error(first.q, second.q, rotation) for rotation in fitting]
    least = min(errors)
    if not least < NEAR:
        raise _unknown(model, f"layer {first.number} is off by {least:.0%}")
    return fitting[errors.index(least)]


def _error(first: Tensor, second: Float[Tensor, "b hq m d"], rotation: Rotation) -> float:
    positions = first.new_full(first.shape[2:3], float(SHIFT), dtype=torch.float32)
    off = turned(first, positions, rotation.to(first.device)) - second
    return float(off.norm() / second.double().norm())


def follows_length(config: PreTrainedConfig) -> str:
    """Return how the frequencies of a decoder follow the prompt's length ("dynamic", "longrope"),
    or "".
    """
    settings = str(getattr(config, "rope_parameters", None))
    return next((kind for kind in ("dynamic", "longrope") if f"'{kind}'" in settings), "")


def _unknown(model: nn.Module, why: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"how {type(check_model(model)).__name__} rotates its queries by their positions is "
        f"unknown ({why}), so the rotation cannot be reversed. Use this method without a profile."
    )
