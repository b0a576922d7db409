"""How the answer attends to what is kept."""

from foveate.stages.attend.softmax_n import SoftmaxN

__all__ = ["SoftmaxN"]
