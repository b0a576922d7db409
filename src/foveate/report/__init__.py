"""What was kept, shown on the images."""

from foveate.backends.hf.image_grid import Grid, grids
from foveate.report.kept import kept_picture

__all__ = ["Grid", "grids", "kept_picture"]
