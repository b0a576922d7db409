"""One prompt under several policies, on a page to look around in."""

from foveate.pictures.lens.show import Lens, compared, lens, lens_of

__all__ = ["Lens", "compared", "lens", "lens_of"]
