"""The policies that every family and mode is tried with."""

from __future__ import annotations

import foveate
from foveate.hf.layer.projection import with_latents
from foveate.methods.kivi import Kivi, KiviOfVisual
from foveate.stages.score import RandomScore
from foveate.stages.select import TopK
from tests import zoo

from .budgets import RandomHeads, RandomLayers

RANDOM = {
    "dense": foveate.random(budget=0.4),
    "ragged": foveate.random(budget=0.4).but(budget=RandomHeads(amount=0.4)),
    "dense, layers differ": foveate.Policy(
        score=RandomScore(seed=1), budget=RandomLayers(amount=0.4), select=TopK(recent=2)
    ),
    # groups of one are exact, so what holds for all pairs in full precision holds here
    "dense, quantised": foveate.random(budget=0.4).but(store=Kivi(group=1, residual=3)),
    "ragged, quantised": foveate.random(budget=0.4).but(
        budget=RandomHeads(amount=0.4), store=Kivi(bits=8, group=1, residual=0)
    ),
    "ragged, by modality": foveate.random(budget=0.4).but(
        budget=RandomHeads(amount=0.4), store=KiviOfVisual(group=1, text=8, residual=3)
    ),
    "ragged, all layers together": foveate.Policy(
        score=RandomScore(seed=2), budget=RandomHeads(amount=0.4, scope="model"), select=TopK()
    ),
}
LAYER_SCOPE = {name: p for name, p in RANDOM.items() if p.scope == "layer"}


SMALL = {
    "compactor": {"sinks": 2, "recent": 2},
    # as they are: a rank tells nothing of how near the next one is
    "lagkv": {"lag": 5, "cross_scoring": True},
}


def of_method(name: str, budget: float | int | str = 0.5) -> foveate.Policy:
    """A registered method with parameters that fit a tiny prompt."""
    method = foveate.METHODS[name]
    # the oracle's merges know no attention, so none is drawn by it
    small = {"budget": budget, "window": 4, "chunk": 16, "sampled": False, **SMALL.get(name, {})}
    return method(**{k: v for k, v in small.items() if k in method.parameters})


# Those with a profile: the budget that they bring is tried in tests/backends/test_head_tables.py,
# the score of q_filters in tests/backends/test_gathering.py, kvzap in tests/methods/test_kvzap.py,
# fast_kvzip in tests/methods/test_fast_kvzip.py.
CALIBRATED = (
    "duo_attention",
    "fast_kvzip",
    "headkv",
    "kvzap",
    "q_filters",
    "sparsemm",
    "triattention",
)
# Families that it cannot read again are refused: tests/backends/test_reprefill.py has all of them.
READS_AGAIN = ("kvzip", "streammem")
METHODS = {
    name: of_method(name) for name in foveate.METHODS if name not in (*CALIBRATED, *READS_AGAIN)
}
COMPOSED = {
    spec: foveate.policy(spec)
    for spec in (
        "mixkv(window=4)+prefixkv+lookm:budget=50%",
        "mixkv(window=4)+david:budget=50%",
        "csp+prefixkv:budget=50%,counted_from=newest,distance=2",
        "csp:budget=50%,decode_n=1.5,when=over_budget",
        "csp:budget=50%,combine=and,fill=false",
        "h2o+david:budget=50%,when=over_budget(every=2)",
        "snapkv:budget=50%,window=4,when=answer_budget(tokens=2,recent=1)",
        "rkv:budget=50%,window=4,every=2",
        "prefixkv:budget=50%,merging=position,attend=softmax_n(n=0.5)",
    )
}
KEEPING_LESS = {
    name: p for name, p in METHODS.items() if name not in ("full", "kivi", "turboquant")
}
ONE_SET = ("llava_deepseek",)
"""Families whose cache stores latents, on newer releases: all heads of a layer keep one set."""
EVERY = {**RANDOM, **KEEPING_LESS, **COMPOSED}
"""Those whose kept set is not random go by what the model attends to."""


def is_refused(family: str, policy: foveate.Policy) -> bool:
    """Whether a stage of the policy means nothing for the family."""
    names = {getattr(policy, slot).spec_name for slot in ("budget", "merge")}
    per_head = {"across_heads", "merge_following", "drop_channels"}
    return family in ONE_SET and bool(names & per_head) and bool(with_latents(zoo.build(family)))
