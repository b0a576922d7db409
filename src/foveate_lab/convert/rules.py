"""From the names and shapes of an original's weights to those of the model here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from foveate.errors import InvalidInput

Split = Callable[[Tensor], Sequence[Tensor]]
SHOWN = 4  # names in a message


@dataclass(frozen=True)
class WeightRule:
    """What becomes of the weights whose whole name matches ``pattern``.

    Attributes:
        pattern: a regular expression.
        to: the new names, as templates for the match; none drops the weight.
        split: makes the tensors for these names of the one; not asked if there is one name alone.
    """

    pattern: str
    to: tuple[str, ...]
    split: Split | None = None

    def apply(self, name: str, tensor: Tensor) -> list[tuple[str, Tensor]] | None:
        """The new names with their tensors; None if the name is not one of this rule's."""
        match = re.fullmatch(self.pattern, name)
        if match is None:
            return None
        parts = [tensor] if self.split is None else self.split(tensor)
        return list(zip([match.expand(each) for each in self.to], parts, strict=False))


def renamed(
    weights: Iterable[tuple[str, Tensor]], rules: Sequence[WeightRule]
) -> Iterator[tuple[str, Tensor]]:
    """All weights under their new names, by the first rule that knows each.

    Raises:
        InvalidInput: no rule knows a name.
    """
    for name, tensor in weights:
        made = next((m for rule in rules if (m := rule.apply(name, tensor)) is not None), None)
        if made is None:
            raise InvalidInput(
                f"the weight {name!r} {list(tensor.shape)} has no place in this model. Is it one "
                "that was trained further with other parts, or quantized? Neither is converted."
            )
        yield from made


def checked(
    weights: Iterable[tuple[str, Tensor]], shapes: dict[str, torch.Size]
) -> Iterator[tuple[str, Tensor]]:
    """The weights, after each was compared with what the model has under its name.

    Args:
        weights: under the model's names.
        shapes: of all weights of the model.

    Raises:
        InvalidInput: a weight of another shape, one that the model lacks or that came twice, and,
            at the end, one that did not come.
    """
    left = dict(shapes)
    for name, tensor in weights:
        if name not in left:
            why = "came twice" if name in shapes else "is one more than config.json tells of"
            raise InvalidInput(f"the weight that becomes {name!r} {why}.")
        if tensor.shape != left.pop(name):
            raise InvalidInput(
                f"the weight that becomes {name!r} has shape {list(tensor.shape)}, but by "
                f"config.json it is {list(shapes[name])}. They are not of the same model."
            )
        yield name, tensor
    if left:
        more = f" and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
        raise InvalidInput(
            f"{len(left)} of {len(shapes)} weights are missing: {', '.join(list(left)[:SHOWN])}"
            f"{more}. Download the whole repository."
        )


def thirds(tensor: Tensor) -> Sequence[Tensor]:
    """Queries, keys and values that stand one after the other."""
    return tensor.chunk(3)


def thirds_per_head(heads: int) -> Split:
    """Queries, keys and values that stand one after the other in each head."""
    return lambda tensor: [
        part.flatten(0, 1) for part in tensor.reshape(heads, 3, -1, *tensor.shape[1:]).unbind(1)
    ]


def grouped(kv_heads: int, queries: int) -> Split:
    """InternLM2's: for each head of keys its query heads, the keys and the values."""

    def split(tensor: Tensor) -> list[Tensor]:
        groups = tensor.reshape(kv_heads, queries + 2, -1, *tensor.shape[1:])
        parts = (groups[:, :queries], groups[:, queries : queries + 1], groups[:, queries + 1 :])
        return [part.flatten(0, 2) for part in parts]

    return split


def extended(rows: int) -> Split:
    """At least so many rows, new ones the mean of all: the logit of a token that the original does
    not have is then the mean of the others, so that it is never the largest.
    """

    def split(tensor: Tensor) -> list[Tensor]:
        if len(tensor) >= rows:
            return [tensor]
        mean = tensor.float().mean(0, keepdim=True).to(tensor.dtype)
        return [torch.cat([tensor, mean.expand(rows - len(tensor), -1)])]

    return split
