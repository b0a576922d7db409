"""Interactive page that compares policies on one prompt."""

from foveate.pictures.lens.show import Lens, compared, lens, lens_of

__all__ = ["Lens", "compared", "lens", "lens_of"]
