"""What a method adds up over all queries of some prompts, where numbers of each would not do."""

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
"""The tensors of a profile that say how a layer turns keys and queries by their positions."""


class Asked(NamedTuple):
    """What is asked about a prompt: ``questions`` as token ids, up to where the model answers, each
    in place of all that follows the prompt's first ``after`` tokens.
    """

    questions: tuple[tuple[int, ...], ...] = ()
    after: int = 0


@runtime_checkable
class Gathering(Protocol):
    """How a profile of tensors is measured, layer by layer: sums over the queries of every prompt,
    and what follows from them. It is told how the model turns queries by their positions if it
    ``turns_back``, for which prompts have to be texts. With a ``watched`` score it sees each layer
    when that score has been made (after a second reading), and its state. A class that inherits
    from this one does neither unless it says so.
    """

    turns_back: ClassVar[bool] = False
    watched: ClassVar[Score | None] = None
    names: ClassVar[tuple[str, ...]]

    def gather(self, layer: Layer, rotation: Rotation | None) -> Sums:
        """The sums over one pass; those of other passes and prompts are added."""
        ...

    def finish(self, sums: Sums, rotation: Rotation | None) -> Mapping[str, Tensor]:
        """The profile's tensors of a layer, by their ``names``."""
        ...


@runtime_checkable
class Targeted(Gathering, Protocol):
    """One whose tensors are fitted to one of several ``targets``, the best first: a model that
    cannot give what the first needs, or prompts without questions, take one that comes later. The
    profile says which. ``watching`` gives the score that notes what a target is made of, and stands
    for ``watched``; ``reached`` which target a layer's sums are of in the end, as a model may have
    answered nothing.
    """

    targets: ClassVar[tuple[str, ...]]

    def watching(self, target: str, questions: Asked) -> Score: ...

    def reached(self, target: str, sums: Sums) -> str: ...


def targets_of(gathering: Gathering) -> tuple[str, ...]:
    """What its tensors may be fitted to; nothing where there is no choice."""
    return gathering.targets if isinstance(gathering, Targeted) else ()


def turns_far_keys(gathering: Gathering) -> bool:
    """Whether its tensors are maps of keys as they are held, which ask of keys far behind its
    prompts that they are turned back (``foveate.profiles.far_keys``): a class says so by
    ``turns_far_keys = True``. Its profiles say how, of models whose rotation is known.
    """
    return bool(getattr(gathering, "turns_far_keys", False))


def check_text(layer: Layer) -> None:
    """Raise InvalidInput where a prompt has an image, and positions do not count the tokens."""
    if layer.slots.image is not None and bool((layer.slots.image >= 0).any()):
        raise InvalidInput(
            "this profile is measured on texts, where positions count the tokens, and a prompt "
            "has an image. Give prompts without images."
        )


def as_tensors(rotation: Rotation) -> Mapping[str, Tensor]:
    """A rotation as a profile holds it."""
    pairs = torch.stack([rotation.first, rotation.second])
    return dict(zip(TURNS, (rotation.frequencies.cpu(), pairs.cpu()), strict=True))


GATHERINGS: Registry[Gathering] = Registry()
