"""Grids of visual tokens: the tokens of an image, and the part of it that each one covers."""

from foveate.models.token_grids.find import image_tokens, not_known
from foveate.models.token_grids.grid import Box, Grid, ImageTokens, Number, Size, tokens_in
from foveate.models.token_grids.kinds import frames_of_each

__all__ = [
    "Box",
    "Grid",
    "ImageTokens",
    "Number",
    "Size",
    "frames_of_each",
    "image_tokens",
    "not_known",
    "tokens_in",
]
