"""Column sums of the causal softmax: how much attention each slot got from all queries."""

from foveate.ops.column_sums.reference import column_sums

__all__ = ["column_sums"]
