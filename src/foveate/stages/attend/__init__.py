"""How the answer attends to what is kept."""

from foveate.stages.attend.softmax_n import SoftmaxN, check_n

__all__ = ["SoftmaxN", "check_n"]
