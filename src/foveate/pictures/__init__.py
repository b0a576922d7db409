"""Pictures and pages that show which tokens a policy keeps."""

from foveate.models.token_grids import Grid, ImageTokens, image_tokens
from foveate.pictures.frames_picture import DrawnFrame, frames_picture
from foveate.pictures.kept_picture import kept_picture

__all__ = ["DrawnFrame", "Grid", "ImageTokens", "frames_picture", "image_tokens", "kept_picture"]
