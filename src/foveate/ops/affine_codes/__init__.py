"""Numbers as codes of a few bits, spread evenly from the least to the most of their group."""

from foveate.ops.affine_codes.reference import BITS, decode, encode, extremes, step_of

__all__ = ["BITS", "decode", "encode", "extremes", "step_of"]
