"""What was kept, shown on the images."""

from foveate.backends.hf.modality import Grid, grids
from foveate.report.kept import kept_picture

__all__ = ["Grid", "grids", "kept_picture"]
