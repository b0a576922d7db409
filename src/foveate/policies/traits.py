"""Facts that a stage may declare beyond its Protocol.

A trait is a keyword of ``@stage``, an attribute, or a property of its parameters. The default is
used for a stage without it; it is always safe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        # Scores, or scores that they wrap.
        # A running score reads Layer.column_sums, which attention may compute as a by-product.
        "reads_column_sums": False,
        # A score reads Layer.output_weight, the projection of the heads' outputs. A backend passes
        # it, or refuses the policy.
        "reads_output_weight": False,
        # Likewise Layer.residual_norm.
        "reads_residual_norm": False,
        # Likewise Layer.hidden.
        "reads_hidden_states": False,
        # Likewise the mask of the model's indexer (sparse attention).
        "reads_indexer": False,
        # A running score's bytes of a slot in one head; 0: measured on one token of zeros, whose
        # hidden states have one channel.
        "slot_bytes": 0,
        # A running score's sums and scores of a slot do not depend on the other slots, and it reads
        # no earlier queries.
        "slotwise": False,
        # A score that ReadsAgain reads Layer.column_maxima: like column_sums, with the largest
        # weight of any query.
        "reads_column_maxima": False,
        # All stages. Advice for models whose cache stores latents, which all heads of a layer share
        # (MLA), so that the stage means nothing for them; empty if it does.
        "instead_for_latents": "",
        # Scores, selections and merges; wrappers declare it for themselves alone.
        # Decisions for a KV head depend on that head alone, so workers with some heads each agree.
        "head_by_head": False,
        # Budgets.
        # One that is EachByItself decides about a pair by that pair's score alone, so it may be
        # called again as tokens arrive.
        "absolute": False,
        # Heads that kept the same number keep it again at every later compression of their layer.
        "steady": False,
        # Selections.
        # Protected slots follow from positions and the budget alone: a budget of ``protects`` holds
        # them, and continues to while an answer grows. ``always(tokens)`` returns their number in a
        # long prompt. Otherwise the slots of every prompt are checked.
        "by_position": False,
        # It may keep fewer slots than its budget, which is then a limit.
        "spares": False,
        # It protects by position and keeps the highest scores of the rest, the earlier of ties.
        "drops_lowest": False,
        # Rules of ``when``.
        # A head with one pair more than it kept last is compressed at every token.
        "one_by_one": False,
        # Limit of the pairs by which a head exceeds the number it kept last, the newest token
        # included; 0: no limit.
        "beyond": 0,
        # A rule that prunes counts the pairs after the prompt, even if the complete prompt is kept.
        # ``kept`` of its moments counts the prompt's stored pairs.
        "of_answer": False,
        # The budget is that of all tokens seen so far, and so is ``kept`` of its moments.
        "growing": False,
    }
)


def trait(stage: object, name: str) -> Any:
    """Return a fact about a stage, or its default."""
    return getattr(stage, name, DEFAULTS[name])


def wrapped(score: Any) -> Iterator[Any]:
    """Yield the score, the score that it wraps, and so on."""
    inner: Any = score
    while inner is not None:
        yield inner
        inner = getattr(inner, "of", None)
