"""Operators on raw tensors, one folder each: a dispatching API beside its plain reference.

``impl="reference"`` is the oracle and the default on every device; ``impl="triton"``, or a block of
``with using("triton"):``, runs the Triton kernels. Nothing falls back: an implementation works or
raises.
"""

from foveate.ops.choice import Impl, using

__all__ = ["Impl", "using"]
