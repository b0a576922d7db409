"""Which visual tokens are made of an image, and what of it each of them sees."""

from foveate.models.token_grids.find import image_tokens, not_known
from foveate.models.token_grids.grid import Box, Grid, ImageTokens, Number, Size, tokens_in

__all__ = ["Box", "Grid", "ImageTokens", "Number", "Size", "image_tokens", "not_known", "tokens_in"]
