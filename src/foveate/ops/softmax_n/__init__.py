"""Softmax-n: a softmax whose weights may add up to less than one."""

from foveate.ops.softmax_n.reference import attention_n, share, softmax_n

__all__ = ["attention_n", "share", "softmax_n"]
