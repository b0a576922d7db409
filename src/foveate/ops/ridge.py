"""Ridge regression from sums of products, without storing samples."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

LEAST = 1e-12  # lower bound of a feature's variance


class Linear(NamedTuple):
    """One linear map per head: ``weights @ features + offset``."""

    weights: Float[Tensor, "h f"]
    offset: Float[Tensor, "h"]


def ridge_regression(
    products: Float[Tensor, "h f1 f1"], goals: Float[Tensor, "h f1"], ridge: float
) -> Linear:
    """Fit a linear map per head by ridge regression.

    It minimises the mean squared error plus ``ridge`` times the squared weights, with every feature
    scaled by its deviation first. The offset is not penalised.

    Args:
        products: sums over samples of (1, features) times themselves.
        goals: sums over samples of (1, features) times the target.
        ridge: above zero.
    """
    count = products[:, :1, :1]
    mean = products[:, :1] / count
    scale = (products.diagonal(dim1=1, dim2=2)[:, None] / count - mean.square()).clamp_min(LEAST)
    scale = scale.sqrt()
    scale[..., 0], mean[..., 0] = 1.0, 0.0
    centred = products - mean.transpose(1, 2) @ products[:, :1]
    centred = centred - centred[:, :, :1] @ mean
    goal = goals - (mean.transpose(1, 2) @ goals[:, :1, None])[..., 0]
    matrix = centred / (scale.transpose(1, 2) @ scale)
    penalty = ridge * torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    penalty[0, 0] = 0.0
    matrix = matrix + count * penalty
    weights = torch.linalg.solve(matrix, goal / scale[:, 0]) / scale[:, 0]
    offset = weights[:, 0] - (weights * mean[:, 0]).sum(-1)
    return Linear(weights[:, 1:], offset)
