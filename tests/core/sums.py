"""Sums of methods, stage by stage: the worked examples, and what is asked of all."""

from __future__ import annotations

import foveate
from foveate.methods.csp import CrossSelf, CrossSelfAttention
from foveate.methods.david import Decoupled, ModalityFusion
from foveate.methods.lookm import TextPrior
from foveate.methods.mixkv import MixDiversity
from foveate.methods.prefixkv import PrefixBudget
from foveate.policies.spec import SLOTS
from foveate.stages.budget import Uniform
from foveate.stages.merge import MergeNearest
from foveate.stages.score import WindowAttention
from foveate.stages.select import TopK
from foveate.stages.when import FixedSlot

EXAMPLES = {
    "mixkv+prefixkv+lookm.merge:budget=10%": foveate.Policy(
        score=MixDiversity(of=WindowAttention()),
        budget=PrefixBudget(amount="10%"),
        select=TopK(recent=32),
        merge=MergeNearest(by="cosine", how="pivotal"),
        when=FixedSlot(distance=25),
    ),
    "mixkv+prefixkv+lookm:budget=10%": foveate.Policy(
        score=TextPrior(of=MixDiversity(of=WindowAttention())),
        budget=PrefixBudget(amount="10%"),
        select=TopK(recent=32),
        merge=MergeNearest(by="cosine", how="pivotal"),
        when=FixedSlot(distance=25),
    ),
    "mixkv+david:budget=20%": foveate.Policy(
        score=ModalityFusion(of=MixDiversity(of=WindowAttention(window=32), window=32)),
        budget=Uniform(amount="20%"),
        select=Decoupled(recent=0.5),
    ),
    "mixkv+david:budget=20%,recent=32": foveate.Policy(
        score=ModalityFusion(of=MixDiversity(of=WindowAttention(window=32), window=32), window=32),
        budget=Uniform(amount="20%"),
        select=Decoupled(recent=32),
    ),
    "csp+prefixkv:budget=20%": foveate.Policy(
        score=CrossSelfAttention(window=0.5),
        budget=PrefixBudget(amount="20%"),
        select=CrossSelf(recent=0.5),
        when=FixedSlot(distance=25),
    ),
}


def stages_of(policy):
    return {slot: getattr(policy, slot) for slot in SLOTS}


def assert_reads_back(policy):
    again = foveate.policy(policy.spec)
    assert again == policy
    assert again.spec == policy.spec == str(policy)
    assert again.name == policy.name
