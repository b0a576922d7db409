"""What was kept, shown on the images."""

from foveate.report.kept import kept_picture
from foveate.report.places import Grid, grids

__all__ = ["Grid", "grids", "kept_picture"]
