"""Operators on raw tensors: a function that dispatches, and its plain torch reference.

``impl="reference"`` is the oracle and the default on every device. ``impl="triton"``, or a
``with using("triton"):`` block, runs the Triton kernels. There is no fallback: an implementation
works or raises.
"""

from foveate.ops.choice import Impl, using

__all__ = ["Impl", "using"]
