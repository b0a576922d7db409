"""What a stage may say of itself, beside what its Protocol asks: a keyword of ``@stage``, an
attribute, or a property of its parameters. Of a stage that says nothing the default here is true,
which is always safe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        # A score, of itself or of one that it wraps
        "reads_column_sums": False,  # a running score that reads Layer.column_sums: a backend whose
        # attention can add them up on its way does so
        "reads_output_weight": False,  # Layer.output_weight, the projection of the heads' outputs:
        # a backend that knows the model gives it, and refuses the policy where it cannot
        "reads_residual_norm": False,  # Layer.residual_norm, likewise
        "slotwise": False,  # a running score: what it observes of a slot, and how it scores it,
        # does not depend on which slots stand beside it; and it reads no earlier queries
        "reads_column_maxima": False,  # one that ReadsAgain: Layer.column_maxima, the same of the
        # most that any query pays
        # A score, a selection or a merge; wrappers of themselves alone
        "head_by_head": False,  # what it decides of a KV head follows from that head alone, so that
        # workers that hold some heads each agree
        # A budget
        "absolute": False,  # one that is EachByItself: whether it keeps a pair follows from that
        # pair's score alone, so that it may be asked again as tokens arrive
        "steady": False,  # heads that kept the same number keep it again whenever their layer is
        # compressed later
        # A selection
        "by_position": False,  # what it protects follows from positions and the budget alone: a
        # budget of ``protects`` holds it, and once held it stays so while an answer grows. Then
        # ``always(tokens)`` says how many that is of a long prompt. Else every prompt is asked
        "spares": False,  # it may keep fewer slots than it is told, for what its rule lists is not
        # always that much: the budget is then what it keeps at most
        "drops_lowest": False,  # it protects by position and keeps the highest scores of the rest,
        # of equal ones the earlier
        # A rule of when
        "one_by_one": False,  # a head that holds one pair more than it kept last is compressed at
        # every token
        "beyond": 0,  # heads never hold more than so many pairs more than they kept last, that of
        # the newest token included; 0: there is no such bound
        "of_answer": False,  # a rule that prunes: it goes by pairs that came after the prompt, also
        # where the whole prompt is kept. ``kept`` of its moments are the prompt's that are held
        "growing": False,  # the budget is that of all tokens seen so far. ``kept`` of its moments
        # is that budget, whatever was kept last
    }
)


def trait(stage: object, name: str) -> Any:
    """What a stage says of itself."""
    return getattr(stage, name, DEFAULTS[name])


def wrapped(score: Any) -> Iterator[Any]:
    """The score, what it wraps, what that wraps, and so on."""
    inner: Any = score
    while inner is not None:
        yield inner
        inner = getattr(inner, "of", None)
