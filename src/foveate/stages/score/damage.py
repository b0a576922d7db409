"""What would be lost with a pair: how far heads' outputs move, and what that does to an answer.

A head whose pair j goes shares its attention out anew, and its output moves by
``a / (1 - a) * (v_j - o)``: Foveate's own measure of a pair, beside the attention a that it is
paid (KVzip), and what the pair itself adds with it (KVzip+).
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxtyping import Float
from torch import Tensor

from foveate.cache.layer import Layer
from foveate.errors import InvalidInput
from foveate.stages.score.rows import rows

REST = 1e-3
"""What a query pays to all other pairs at least: of all its attention on one pair, a thousandth."""
LEAST = 1e-30  # of a norm that is divided by


def squared_damage(layer: Layer) -> Iterator[Float[Tensor, "b h g r n"]]:
    """The square of ``a / max(1 - a, REST) * |W_o (v_j - o)| / |x|``, for some queries at a time:
    ``a`` is what a query head pays to pair j and ``o`` its output, ``W_o`` the head's part of the
    output projection, and ``x`` the residual stream that the layer reads, before its norm. Zero for
    padded queries; in float32. The layer comes with its ``output_weight`` and ``residual_norm``.

    Raises:
        InvalidInput: the layer came without them.
    """
    v, gram, of_values, norms = _projected(layer)
    for some, paid in rows(layer):
        out = paid @ v[:, :, None]
        turned = out @ gram
        square = (turned @ v[:, :, None].mT).mul_(-2).add_(of_values[..., None, :])
        square = square.add_((turned * out).sum(-1, keepdim=True)).clamp_min_(0)
        norm = norms[:, some]
        yield square.mul_(_odds(paid).square_()).div_(norm.square()[:, None, None, :, None])


def contribution(layer: Layer) -> Iterator[Float[Tensor, "b h g r n"]]:
    """``a * |W_o v_j| / |x|`` of some queries at a time, in the letters and under the conditions of
    :func:`squared_damage`: how much of what a head adds to the residual stream is pair j's.

    Source: KVzap (arXiv:2601.07891), section on KVzip+.

    Raises:
        InvalidInput: the layer came without its output projection or the residual stream.
    """
    _, _, of_values, norms = _projected(layer)
    length = of_values.clamp_min(0).sqrt()[..., None, :]
    for some, paid in rows(layer):
        yield paid.mul_(length).div_(norms[:, some][:, None, None, :, None])


def _projected(layer: Layer) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Values [b h n e], the products of each query head's output projection with itself
    [h g e e], the squared lengths of projected values [b h g n], and norms of the residual stream
    [b m].
    """
    if layer.output_weight is None or layer.residual_norm is None:
        raise InvalidInput(
            f"layer {layer.number} came without its output projection or the residual stream, by "
            "which damage is measured. Read the prompt inside foveate.compress(model, policy)."
        )
    h, v = layer.k.shape[1], _values(layer)
    weight = layer.output_weight.to(v.device).float().view(h, layer.groups, v.shape[-1], -1)
    gram = weight @ weight.mT  # |W x|^2 = x' G x, with far fewer numbers than W x
    of_values = ((v[:, :, None] @ gram) * v[:, :, None]).sum(-1)
    return v, gram, of_values, layer.residual_norm.to(v.device).float().clamp_min(LEAST)


def answer_damage(layer: Layer, gradient: Float[Tensor, "b m hq e"]) -> Float[Tensor, "b h n"]:
    """What an answer would lose with each pair, to first order: ``a / max(1 - a, REST)`` times
    ``gradient . (v_j - o)``, added up over queries and query heads; in float32.

    Args:
        layer: the queries of a question and its answer, and all that they see.
        gradient: of what is lost, by the heads' outputs.
    """
    h, v = layer.k.shape[1], _values(layer)
    b, m, _, e = gradient.shape
    by_head = gradient.float().view(b, m, h, -1, e).permute(0, 2, 3, 1, 4)
    total = v.new_zeros(v.shape[:3])
    for some, paid in rows(layer):
        mine = by_head[:, :, :, some]
        at_output = (mine * (paid @ v[:, :, None])).sum(-1, keepdim=True)
        change = (mine @ v[:, :, None].mT).sub_(at_output)
        total += change.mul_(_odds(paid)).sum((2, 3))
    return total


def _odds(paid: Float[Tensor, "b h g r n"]) -> Float[Tensor, "b h g r n"]:
    return paid / (1 - paid).clamp_min_(REST)


def _values(layer: Layer) -> Float[Tensor, "b h n e"]:
    """Zeros at padding, whose numbers may be anything."""
    v: Tensor = layer.v.masked_fill(~layer.valid[..., None], 0.0).float()
    return v
