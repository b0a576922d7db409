"""How good a prediction is, from 0 to 1: one file for each kind of score.

Each follows the script that its benchmark is scored with, quirks included; what those are, is said
with each.
"""

from foveate.eval.metrics import cider, longbench, loogle, milebench
from foveate.eval.metrics.answers import anls, contains, exact, relaxed, says
from foveate.eval.metrics.rouge import rouge_l, rouge_l_to
from foveate.eval.metrics.vqa import vqa_accuracy

__all__ = [
    "anls",
    "cider",
    "contains",
    "exact",
    "longbench",
    "loogle",
    "milebench",
    "relaxed",
    "rouge_l",
    "rouge_l_to",
    "says",
    "vqa_accuracy",
]
