"""Which of our specs each of kvpress's recorded presses is compared with, and how."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

PENDING: set[str] = set()
"""Methods and stages that specs name here and in kvpress_names.py of the docs before they exist."""


def pending(spec: str) -> set[str]:
    """Which of them a spec uses."""
    return {name for name in PENDING if re.search(rf"\b{name}\b", spec)}


def unmarked(theirs: Tensor) -> Tensor:
    """Without what kvpress marks by one, to be kept."""
    return theirs.masked_fill(theirs == 1.0, torch.inf)


@dataclass(frozen=True)
class Row:
    """A press that was recorded, and the spec that is compared with it.

    ``scores`` turns theirs into ours; None where theirs are marks that rank nothing. ``departs``
    says why another set is kept, where that is so. ``inputs`` names the file that both were given,
    and ``k`` the keys in it.
    """

    press: str
    spec: str
    scores: Callable[[Tensor], Tensor] | None = lambda theirs: theirs
    departs: str = ""
    inputs: str = "inputs"
    k: str = "k"
    tolerance: float = 1e-5
    projected: bool = False  # whether it reads the output projection
    profile: str = ""  # what was recorded of the heads, which {profile} is a file of
    marked: bool = True  # whether theirs gives what is always kept the highest scores
    target: str = ""  # what the profile says that it was fitted to

    @property
    def border(self) -> float:
        """How near to the lowest score kept another one may be, and stay in its place."""
        return 0.0 if self.tolerance == Row.tolerance else 2 * self.tolerance

    def __str__(self) -> str:
        return self.press


ADAKV = "adakv:budget=40%,window=8,kernel=5,pool=avg"
ROWS = [
    Row("knorm", "knorm:budget=40%"),
    Row("snapkv", "snapkv:budget=40%,window=8"),
    Row("tova", "tova:budget=40%"),
    Row("keydiff", "keydiff:budget=40%"),
    Row("streaming_llm", "streaming_llm:budget=40%", scores=None),
    Row("observed_attention", "h2o:budget=40%,recent=0,score=mean_attention"),
    Row(
        "expected_attention_unrotated",
        "expected_attention:budget=40%,window=61,epsilon=0.02,sinks=0",
        inputs="inputs_unrotated",
    ),
    Row("adakv_unguarded", f"{ADAKV},floor=0.0"),
    Row("adakv", f"{ADAKV},floor=0.2,guaranteed=true"),
    Row("adakv_guarded", f"{ADAKV},floor=0.95,guaranteed=true"),
    Row("lagkv", "lagkv:budget=41%,lag=8", scores=unmarked),
    Row("lagkv_cross", "lagkv:budget=40%,lag=8,cross_scoring=true", scores=unmarked),
    Row("cur", "cur:budget=40%"),
    Row("cur_global", "cur:budget=40%,leverage=mean,local=null"),
    Row("leverage", "leverage:budget=40%,sketch=null", k="k_before", tolerance=0.01),
    Row("non_causal", "non_causal_attention:budget=40%,chunk=61"),
    Row("non_causal_padded", "non_causal_attention:budget=40%,chunk=16,as_released=true"),
    Row(
        "compactor_unrotated",
        "compactor:budget=40%,blending=0.6,chunk=49,sketch=null",
        inputs="inputs_unrotated",
        tolerance=0.01,
    ),
    Row(
        "compactor_padded_unrotated",
        "compactor:budget=40%,blending=0.6,sketch=null,as_released=true",
        inputs="inputs_unrotated",
        tolerance=0.01,
    ),
    Row(
        "compactor",
        "compactor:budget=40%,blending=0.6,chunk=49,sketch=null",
        scores=None,
        departs="kvpress takes the leverage of keys before the rotation; ours after it, as cached",
    ),
    Row("chunkkv_keydiff", "keydiff:budget=40%,select=best_chunks(length=8)"),
    Row(
        "chunkkv",
        "chunkkv:budget=40%,length=8,window=8,pool=avg",
        departs="kvpress keeps a number of chunks, rounded down, of which the window is one or "
        "two; ours keeps the window and cuts the last chunk, so that the budget is exact",
    ),
    Row("chunk", "knorm:budget=25,select=top_k_of_chunks(length=20)", scores=None),
    Row("finch", "finch:budget=40%,window=8"),
    Row("finch_plain", "finch:budget=40%,window=8,normalised=false"),
    Row("finch_chunked", "finch:budget=25,window=8,chunk=30"),
    Row(
        "duo_attention",
        "duo_attention:budget=37,profile={profile},sinks=4,recent=9",
        scores=None,
        profile="heads",
    ),
    Row(
        "expected_attention_stats",
        "expected_attention:budget=40%,epsilon=0.02,future=512,profile={profile}",
        profile="statistics",
    ),
    Row(
        "expected_attention",
        "expected_attention:budget=40%,epsilon=0.02,future=512,profile={profile}",
        profile="own_statistics",
    ),
    Row("qfilter", "q_filters:budget=40%,profile={profile}", profile="filters"),
    Row("dms", "knorm:recent=8,budget=above_threshold(threshold=-4)", marked=False),
    Row(
        "kvzap_unrotated",
        "kvzap:threshold=-4,sinks=0,recent=8,profile={profile}",
        inputs="inputs_unrotated",
        profile="surrogate",
        target="contribution",
        marked=False,
    ),
    Row("simlayerkv", "simlayerkv:budget=40,sinks=4,recent=15", scores=None),
    Row("criticalkv", "criticalkv:budget=40%,window=8", scores=None, projected=True),
    Row(
        "criticaladakv",
        "criticalkv+adakv:budget=40%,floor=0.2,guaranteed=true,window=8",
        scores=None,
        projected=True,
    ),
    Row(
        "adakv_guarded",
        f"{ADAKV},floor=0.95",
        departs="the paper's floor is mixed with the ranking; kvpress guarantees it",
    ),
    Row(
        "pyramidkv",
        "pyramidkv:budget=40%,beta=2,window=4,kernel=5,pool=avg",
        departs="kvpress draws the line through the whole budget, and rounds every layer by "
        "itself; ours through what the window leaves, as the release does, and exact in all",
    ),
    Row(
        "expected_attention",
        "expected_attention:budget=40%,window=57,epsilon=0.02",
        scores=None,
        departs="kvpress takes queries before the rotation, turns their statistics to the mean of "
        "the next 512 positions, and leaves the sinks out of the softmax",
    ),
]
"""Of 61 tokens kvpress keeps 24, unless another number stands there."""

ELSEWHERE = {
    "think": "test_think_drops_the_channels_that_kvpress_drops",
    "block": "test_blocks_are_a_prompt_read_in_chunks",
    "decoding": "test_decoding_keeps_to_its_size",
    "dms_decoding": "test_a_threshold_goes_on_while_decoding",
    "kvzip": "test_a_second_reading_counts_as_in_kvpress",
    "kvzip_plus": "test_a_second_reading_counts_as_in_kvpress",
}
"""Recorded presses that have a test of their own."""

UNMATCHED = {
    "kvzip_chunked",
    "kvzip_layerwise",
}
"""Recorded presses that nothing here does."""
