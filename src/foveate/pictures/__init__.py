"""Pictures and pages that show which tokens a policy keeps."""

from foveate.models.token_grids import Grid, ImageTokens, image_tokens
from foveate.pictures.kept_picture import kept_picture

__all__ = ["Grid", "ImageTokens", "image_tokens", "kept_picture"]
