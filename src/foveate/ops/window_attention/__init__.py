"""Attention that the last queries of a prompt pay to every slot."""

from foveate.ops.window_attention.reference import window_attention

__all__ = ["window_attention"]
