"""Column sums of the causal softmax: how much attention each slot got from all queries."""

from foveate.ops.column_sums.reference import attention_with_sums, column_sums

__all__ = ["attention_with_sums", "column_sums"]
