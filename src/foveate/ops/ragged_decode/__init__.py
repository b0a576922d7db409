"""One decoding step's attention over heads that hold different numbers of pairs."""

from foveate.ops.ragged_decode.reference import ragged_decode

__all__ = ["ragged_decode"]
