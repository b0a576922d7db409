"""Foveate's own recipe: the effect of losing a pair, predicted from the pair by itself.

A profile holds, for every KV head, a linear map from a pair (key, value, and a few facts of both)
to the logarithm of the effect of its loss. ``foveate calibrate recommended`` fits it once per
model, from prompts that are read twice, as in KVzip; but to the damage to heads' outputs, and to
the model's own answers about the prompt, and not to attention alone (below). No labels are needed.
Scoring a pair then costs two dot products, no query is read, and one file serves every budget, with
the question known or not. One ranking over all heads and layers sets each head's number. Where that
has to be known before a prompt is read (inside vLLM, layer by layer), the average ranking is used.
The first token stays in all heads.

Keys are rotated by their positions, and the maps know those of the profile's prompts: a key beyond
the longest of them is scored as if it were at its end (:mod:`foveate.profiles.far_keys`).

S and M are the sum and the maximum, over queries and query heads, of the damage d that a pair's
loss does to the heads' outputs during the second reading (:func:`squared_damage`). F is its damage
to the model's own answers (:func:`answer_damage`), over the questions that are asked about the
prompt. Where some of them cannot be measured, fewer are used; the profile records the target:

| target | score of a pair |
|---|---|
| "answers" | the mean of .5 log S, log M and F |
| "damage" | the mean of .5 log S and log M: no questions, or no gradients |
| "attention" | the log of the highest attention (KVzip): the output projection cannot be read |

Without a profile it takes the one that is installed for the model (``foveate profiles``). Without
that it is the best method here that needs no profile and reads the prompt once: how much a key
differs from all others (KeyDiff) and how large its value is, in one ranking. The logger "foveate"
reports that once, at INFO.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Literal

from foveate.errors import InvalidParameter
from foveate.methods.recommended.fitting import SecondReading as SecondReading  # registers itself
from foveate.methods.recommended.head_levels import HeadLevels, LayerLevels
from foveate.methods.recommended.predicted import ForetoldReconstruction
from foveate.policies.method import Amount, Policy, method
from foveate.policies.parameters import Count, Recent
from foveate.policies.protocols import Budget, Score
from foveate.stages import KeyDifference, OneRanking, TopK

VALUE = 0.15
"""Weight of a value's log norm without a profile."""
Heads = Literal["by_prompt", "by_profile", "by_layer"]


@cache
def suggest_profile_once() -> None:
    """Log, once per process, that a profile would improve the ranking."""
    logging.getLogger("foveate").info(
        "recommended has no profile: unless one is installed for the model, it ranks pairs by how "
        "much their keys differ and by the norm of their values. 'foveate calibrate recommended "
        "--model MODEL' makes one in minutes; kvzip needs none, at the cost of a second prefill."
    )


@method(adds=("score", "budget", "select"), foretold="profile=FILE,heads=by_profile")
def recommended(
    *,
    budget: Amount,
    profile: str | None = None,
    sinks: Count = 1,
    recent: Recent | None = None,
    heads: Heads = "by_prompt",
) -> Policy:
    """Pairs whose loss is predicted to change heads' outputs and answers most.

    One profile of ``foveate calibrate recommended --model MODEL`` serves every budget, and prompts
    with or without their question. ``recent`` tokens are always kept: by default the last one,
    which an answer begins with, and a quarter of the budget without a profile. Each head's number
    follows from the prompt, or ``by_profile`` and ``by_layer`` from the prompts of the profile.

    Args:
        heads: Source of each head's number of pairs: the prompt, the profile, or the profile with
            the same number for all heads of a layer.

    Raises:
        InvalidParameter: heads=by_profile or by_layer without a profile.

    Defaults:
        measurements in [which_method.md](which_method.md)
    """
    split: Budget = OneRanking(amount=budget)
    if heads != "by_prompt":
        if profile is None:
            raise InvalidParameter(f"heads={heads!r} needs a profile: give profile=FILE.")
        levels = HeadLevels if heads == "by_profile" else LayerLevels
        split = levels(amount=budget, profile=profile, of="recommended")
    if profile is None:
        suggest_profile_once()
        score: Score = KeyDifference(value=VALUE)
    else:
        score = ForetoldReconstruction(profile=profile)
    if recent is None:
        recent = 0.25 if profile is None else 1
    return Policy(
        score=score,
        budget=split,
        select=TopK(sinks=sinks, recent=recent),
    )
