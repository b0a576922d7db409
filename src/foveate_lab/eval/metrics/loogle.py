"""LooGLE's automatic scores that need no model: ROUGE recall, and the entities of a cloze.

Li et al., arXiv:2311.04939, Evaluation/automatic_metrics.py. Their BLEU, METEOR and BERTScore are
not here. An empty answer counts as the word "None", as with them.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from foveate_lab.eval.metrics.rouge import rouge_l_recall


def recall(said: str, right: str) -> float:
    """ROUGE-L of the package rouge, of which LooGLE reports the recall."""
    return rouge_l_recall(said or "None", right)


def exact_match(said: str, right: Mapping[str, str]) -> float:
    """The share of masks whose entity is given letter by letter."""
    given = mapping(said)
    return sum(given.get(mask) == entity for mask, entity in right.items()) / len(right)


def partial_match(said: str, right: Mapping[str, str]) -> float:
    """The share of masks whose entity has a word in common with what is given."""
    given = mapping(said)
    shared = (
        set(str(given[mask]).split()) & set(entity.split())
        for mask, entity in right.items()
        if mask in given
    )
    return sum(map(bool, shared)) / len(right)


def mapping(text: str) -> dict[str, object]:
    """The Python dictionary that a text is; empty where it is none."""
    try:
        literal = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {}
    return {str(key): value for key, value in literal.items()} if isinstance(literal, dict) else {}
