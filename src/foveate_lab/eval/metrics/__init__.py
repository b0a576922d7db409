"""Metrics that score a prediction from 0 to 1, one module per kind.

Each follows its benchmark's official script, including quirks, which its module documents.
"""

from foveate_lab.eval.metrics import cider, longbench, loogle, milebench
from foveate_lab.eval.metrics.answers import anls, contains, exact, has_words, relaxed
from foveate_lab.eval.metrics.rouge import rouge_l, rouge_l_to
from foveate_lab.eval.metrics.vqa import vqa_accuracy

__all__ = [
    "anls",
    "cider",
    "contains",
    "exact",
    "has_words",
    "longbench",
    "loogle",
    "milebench",
    "relaxed",
    "rouge_l",
    "rouge_l_to",
    "vqa_accuracy",
]
