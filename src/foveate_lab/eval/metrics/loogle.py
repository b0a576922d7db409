"""LooGLE's automatic scores that need no model: ROUGE recall, and the entities of a cloze.

Li et al., arXiv:2311.04939, Evaluation/automatic_metrics.py. Their BLEU, METEOR and BERTScore are
not implemented. An empty answer counts as the word "None", as in their code.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from foveate_lab.eval.metrics.rouge import rouge_l_recall


def recall(prediction: str, right: str) -> float:
    """Return the recall of ROUGE-L of the package rouge, which LooGLE reports."""
    return rouge_l_recall(prediction or "None", right)


def exact_match(prediction: str, right: Mapping[str, str]) -> float:
    """Return the share of masks whose predicted entity is exactly right."""
    entities = mapping(prediction)
    return sum(entities.get(mask) == entity for mask, entity in right.items()) / len(right)


def partial_match(prediction: str, right: Mapping[str, str]) -> float:
    """Return the share of masks whose predicted entity shares a word with the right one."""
    entities = mapping(prediction)
    shared = (
        set(str(entities[mask]).split()) & set(entity.split())
        for mask, entity in right.items()
        if mask in entities
    )
    return sum(map(bool, shared)) / len(right)


def mapping(text: str) -> dict[str, object]:
    """Parse a text as a Python dictionary; empty if it is none."""
    try:
        literal = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {}
    return {str(key): value for key, value in literal.items()} if isinstance(literal, dict) else {}
