"""Where CSP's selection and merge stood before."""

from __future__ import annotations

from foveate.stages.moved import moved

__getattr__ = moved(
    __name__,
    CrossSelf="foveate.methods.csp",
    Doubles="foveate.methods.csp",
    Lengths="foveate.methods.csp",
)
