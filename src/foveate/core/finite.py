"""Keys, values and queries that are no numbers: which layer has them first.

Whatever a policy would keep of such a layer, nothing that attends to it would be a number either.
Models make them where activations overflow, as a rule in float16.
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxtyping import Bool, Float
from torch import Tensor

from foveate.core.layer import Layer
from foveate.errors import InvalidInput


def doubt(layer: Layer, queries: int) -> Float[Tensor, ""]:
    """NaN where any of them may be no number (at padding, where that does not matter, as well),
    otherwise zero; nothing is asked of the device. Of the queries the last so many count.
    """
    sums = _doubt(layer.k) + _doubt(layer.v)
    return sums + _doubt(layer.q[:, :, -queries:]) if queries else sums


def check(layer: Layer, queries: int, user: object) -> None:
    """Raises InvalidInput where any of them is no number; ``user`` says what wanted them."""
    if bool(doubt(layer, queries).isnan()):
        refuse(layer, queries, user)


def refuse(layer: Layer, queries: int, user: object) -> None:
    """The same, with the layer and how many, of real tokens alone."""
    for name, t, real in _parts(layer, queries):
        broken = ~t.isfinite().all(-1) & real
        if count := int(broken.flatten(0, -2).any(0).sum()):
            kind = str(t.dtype).removeprefix("torch.")
            raise InvalidInput(
                f"the {name} of layer {layer.number} hold NaN or infinity at {count} of "
                f"{t.shape[2]} tokens, which {user} cannot work on. Where a model overflows in "
                f"its type (here {kind}), load it in bfloat16 or float32."
            )


def _parts(
    layer: Layer, queries: int
) -> Iterator[tuple[str, Float[Tensor, "b _h m _d"], Bool[Tensor, "b #_h m"]]]:
    yield "keys", layer.k, layer.valid
    yield "values", layer.v, layer.valid
    if queries:
        yield "queries", layer.q[:, :, -queries:], (layer.q_pos[:, -queries:] >= 0)[:, None]


def _doubt(t: Float[Tensor, "b h m d"]) -> Float[Tensor, ""]:
    """Times zero, every number is zero, and nothing else is."""
    least, most = t.detach().aminmax()
    return (most.float() - least.float()) * 0.0
