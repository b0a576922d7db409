"""Damage of losing a pair: the change of heads' outputs, and its effect on an answer.

If pair j is lost, the head shares its attention out among the other pairs, and its output moves by
``a / (1 - a) * (v_j - o)``. This is Foveate's own measure of a pair, beside the attention a that it
receives (KVzip), and its contribution with that attention (KVzip+).
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxtyping import Float
from torch import Tensor

from foveate.cache.layer import Layer
from foveate.errors import InvalidInput
from foveate.stages.score.attention_rows import rows

REST = 1e-3
"""Minimum attention of a query to all other pairs together, where one pair gets all of it."""
LEAST = 1e-30  # lower bound of norms that are divisors


def squared_damage(layer: Layer) -> Iterator[Float[Tensor, "b h g r n"]]:
    """Iterate over blocks of queries, with the squared relative damage of losing each pair.

    It is the square of ``a / max(1 - a, REST) * |W_o (v_j - o)| / |x|``, where ``a`` is the
    attention of a query head to pair j, ``o`` the head's output, ``W_o`` its part of the output
    projection, and ``x`` the residual stream that the layer reads, before its norm. Zero for padded
    queries; in float32. The layer needs ``output_weight`` and ``residual_norm``.

    Raises:
        InvalidInput: the layer has no output projection or no residual stream.
    """
    v, gram, of_values, norms = _projected(layer)
    for block, paid in rows(layer):
        out = paid @ v[:, :, None]
        turned = out @ gram
        square = (turned @ v[:, :, None].mT).mul_(-2).add_(of_values[..., None, :])
        square = square.add_((turned * out).sum(-1, keepdim=True)).clamp_min_(0)
        norm = norms[:, block]
        yield square.mul_(_odds(paid).square_()).div_(norm.square()[:, None, None, :, None])


def contribution(layer: Layer) -> Iterator[Float[Tensor, "b h g r n"]]:
    """Iterate over blocks of queries, with each pair's share of the head's output.

    It is ``a * |W_o v_j| / |x|``, with the symbols and requirements of :func:`squared_damage`.

    Source: KVzap (arXiv:2601.07891), section on KVzip+.

    Raises:
        InvalidInput: the layer has no output projection or no residual stream.
    """
    _, _, of_values, norms = _projected(layer)
    length = of_values.clamp_min(0).sqrt()[..., None, :]
    for block, paid in rows(layer):
        yield paid.mul_(length).div_(norms[:, block][:, None, None, :, None])


def _projected(layer: Layer) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return values, W_o W_o^T, squared norms of W_o v, and norms of the residual stream.

    Their shapes are [b h n e], [h g e e], [b h g n] and [b m].
    """
    if layer.output_weight is None or layer.residual_norm is None:
        raise InvalidInput(
            f"layer {layer.number} has no output projection or no residual stream, which this "
            "score needs. Read the prompt inside foveate.compress(model, policy)."
        )
    h, v = layer.k.shape[1], _values(layer)
    weight = layer.output_weight.to(v.device).float().view(h, layer.groups, v.shape[-1], -1)
    gram = weight @ weight.mT  # |W x|^2 = x' G x, with far fewer numbers than W x
    of_values = ((v[:, :, None] @ gram) * v[:, :, None]).sum(-1)
    return v, gram, of_values, layer.residual_norm.to(v.device).float().clamp_min(LEAST)


def answer_damage(layer: Layer, gradient: Float[Tensor, "b m hq e"]) -> Float[Tensor, "b h n"]:
    """Return the first-order loss of an answer if each pair is lost.

    It is ``a / max(1 - a, REST)`` times ``gradient . (v_j - o)``, summed over queries and query
    heads; in float32.

    Args:
        layer: the queries of a question and its answer, and all slots that they see.
        gradient: of the answer's loss by the heads' outputs.
    """
    h, v = layer.k.shape[1], _values(layer)
    b, m, _, e = gradient.shape
    by_head = gradient.float().view(b, m, h, -1, e).permute(0, 2, 3, 1, 4)
    total = v.new_zeros(v.shape[:3])
    for block, paid in rows(layer):
        head_gradient = by_head[:, :, :, block]
        at_output = (head_gradient * (paid @ v[:, :, None])).sum(-1, keepdim=True)
        change = (head_gradient @ v[:, :, None].mT).sub_(at_output)
        total += change.mul_(_odds(paid)).sum((2, 3))
    return total


def _odds(paid: Float[Tensor, "b h g r n"]) -> Float[Tensor, "b h g r n"]:
    return paid / (1 - paid).clamp_min_(REST)


def _values(layer: Layer) -> Float[Tensor, "b h n e"]:
    """Return the values in float32, with zeros at padding, which may contain anything."""
    v: Tensor = layer.v.masked_fill(~layer.valid[..., None], 0.0).float()
    return v
