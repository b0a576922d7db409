"""Measurement of profiles of tensors: sums over all queries of some prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from foveate.cache.layer import Layer
from foveate.errors import InvalidInput
from foveate.ops.rotation import Rotation
from foveate.policies.protocols import Score
from foveate.policies.registry import Registry

Sums = Mapping[str, Tensor]
TURNS = ("frequencies", "pairs")
"""Names of a profile's tensors that describe a layer's rotary positions."""


class Asked(NamedTuple):
    """Questions about a prompt, as token ids up to where the model answers.

    Each replaces all that follows the prompt's first ``after`` tokens.
    """

    questions: tuple[tuple[int, ...], ...] = ()
    after: int = 0


@runtime_checkable
class Gathering(Protocol):
    """Measurement of a profile of tensors from sums over the queries of every prompt, per layer.

    A class with ``turns_back`` gets the model's rotary positions, and needs prompts without images.
    A class with a ``watched`` score sees each layer, and its state, once that score was computed
    (after a re-prefill). By default neither is set.
    """

    turns_back: ClassVar[bool] = False
    watched: ClassVar[Score | None] = None
    names: ClassVar[tuple[str, ...]]

    def gather(self, layer: Layer, rotation: Rotation | None) -> Sums:
        """Return the sums over one pass; those of other passes and prompts are added."""
        ...

    def finish(self, sums: Sums, rotation: Rotation | None) -> Mapping[str, Tensor]:
        """Return the profile's tensors of a layer, by their ``names``."""
        ...


@runtime_checkable
class Targeted(Gathering, Protocol):
    """Measurement whose tensors can be fitted to one of several ``targets``, the best first.

    A later target is used if the model or the prompts lack what the first one needs, such as
    questions. The profile names its target. ``watching`` returns the score that records a target's
    ingredients, instead of ``watched``. ``reached`` returns the target that a layer's sums allow in
    the end, because a model may have answered nothing.
    """

    targets: ClassVar[tuple[str, ...]]

    def watching(self, target: str, questions: Asked) -> Score: ...

    def reached(self, target: str, sums: Sums) -> str: ...


def targets_of(gathering: Gathering) -> tuple[str, ...]:
    """Return the targets that its tensors may be fitted to; empty if there is no choice."""
    return gathering.targets if isinstance(gathering, Targeted) else ()


def turns_far_keys(gathering: Gathering) -> bool:
    """Return True if its tensors map stored keys, and far keys must be rotated back.

    Far keys are those behind the profile's prompts (``foveate.profiles.far_keys``). A class
    declares this by ``turns_far_keys = True``; its profiles store the rotation, if the model's is
    known.
    """
    return bool(getattr(gathering, "turns_far_keys", False))


def joins(gathering: Gathering) -> bool:
    """Return True if it gathers rows, which are appended, instead of sums.

    A class declares this by ``joins = True``.
    """
    return bool(getattr(gathering, "joins", False))


def combined(earlier: Sums, new: Sums, joined: bool) -> Sums:
    """Add the sums of two passes, or of two prompts; append rows if they are ``joined``."""
    if not earlier:
        return new
    if joined:
        return {name: torch.cat([earlier[name], rows]) for name, rows in new.items()}
    return {name: earlier[name] + sums for name, sums in new.items()}


def check_text(layer: Layer) -> None:
    """Raise InvalidInput if a prompt has an image, so that positions do not count tokens."""
    if layer.slots.image is not None and bool((layer.slots.image >= 0).any()):
        raise InvalidInput(
            "this profile is measured on texts, where positions count the tokens, and a prompt "
            "has an image. Give prompts without images."
        )


def as_tensors(rotation: Rotation) -> Mapping[str, Tensor]:
    """Return a rotation as tensors of a profile."""
    pairs = torch.stack([rotation.first, rotation.second])
    return dict(zip(TURNS, (rotation.frequencies.cpu(), pairs.cpu()), strict=True))


GATHERINGS: Registry[Gathering] = Registry()
