"""Rules that map names and shapes of an original's weights to the converted model's."""

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
    """Rule for the weights whose full name matches ``pattern``.

    Attributes:
        pattern: a regular expression.
        to: templates of the new names; without any, the weight is dropped.
        split: splits the tensor into one per name; None passes it on unchanged.
    """

    pattern: str
    to: tuple[str, ...]
    split: Split | None = None

    def apply(self, name: str, tensor: Tensor) -> list[tuple[str, Tensor]] | None:
        """Return the new names with their tensors; None if the rule does not match."""
        match = re.fullmatch(self.pattern, name)
        if match is None:
            return None
        parts = [tensor] if self.split is None else self.split(tensor)
        return list(zip([match.expand(template) for template in self.to], parts, strict=False))


def renamed(
    weights: Iterable[tuple[str, Tensor]], rules: Sequence[WeightRule]
) -> Iterator[tuple[str, Tensor]]:
    """Rename all weights, each by the first rule that matches.

    Raises:
        InvalidInput: a name matches no rule.
    """
    for name, tensor in weights:
        renamed_weights = next(
            (pairs for rule in rules if (pairs := rule.apply(name, tensor)) is not None), None
        )
        if renamed_weights is None:
            raise InvalidInput(
                f"the weight {name!r} {list(tensor.shape)} does not belong to this model. Models "
                "with additional parts, and quantized models, cannot be converted."
            )
        yield from renamed_weights


def checked(
    weights: Iterable[tuple[str, Tensor]], shapes: dict[str, torch.Size]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights after checking each against the model's shapes.

    Args:
        weights: under the model's names.
        shapes: shapes of all weights of the model.

    Raises:
        InvalidInput: a weight of another shape, an unknown or repeated one, or, at the end, a
            missing one.
    """
    left = dict(shapes)
    for name, tensor in weights:
        if name not in left:
            why = "occurs twice" if name in shapes else "is not in the model of config.json"
            raise InvalidInput(f"the weight that becomes {name!r} {why}.")
        if tensor.shape != left.pop(name):
            raise InvalidInput(
                f"the weight that becomes {name!r} has shape {list(tensor.shape)}, but "
                f"{list(shapes[name])} by config.json. Download both from the same repository."
            )
        yield name, tensor
    if left:
        more = f" and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
        raise InvalidInput(
            f"{len(left)} of {len(shapes)} weights are missing: {', '.join(list(left)[:SHOWN])}"
            f"{more}. Download the whole repository."
        )


def thirds(tensor: Tensor) -> Sequence[Tensor]:
    """Split stacked queries, keys and values."""
    return tensor.chunk(3)


def thirds_per_head(heads: int) -> Split:
    """Return a split for queries, keys and values that are stacked within each head."""
    return lambda tensor: [
        part.flatten(0, 1) for part in tensor.reshape(heads, 3, -1, *tensor.shape[1:]).unbind(1)
    ]


def grouped(kv_heads: int, queries: int) -> Split:
    """Return a split for InternLM2: each KV head's query heads, then its keys, then its values."""

    def split(tensor: Tensor) -> list[Tensor]:
        groups = tensor.reshape(kv_heads, queries + 2, -1, *tensor.shape[1:])
        parts = (groups[:, :queries], groups[:, queries : queries + 1], groups[:, queries + 1 :])
        return [part.flatten(0, 2) for part in parts]

    return split


def extended(rows: int) -> Split:
    """Return a split that appends rows up to ``rows``, each the mean of all.

    The logit of an added token is then the mean of the others, so it is never the largest.
    """

    def split(tensor: Tensor) -> list[Tensor]:
        if len(tensor) >= rows:
            return [tensor]
        mean = tensor.float().mean(0, keepdim=True).to(tensor.dtype)
        return [torch.cat([tensor, mean.expand(rows - len(tensor), -1)])]

    return split
