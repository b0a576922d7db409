"""Foveate's own recipe: what the loss of a pair would do, foretold from the pair by itself.

A profile holds, for every KV head, a linear map from a pair (key, value, and a few facts of both)
to the logarithm of what its loss does. It is fitted once per model, by ``foveate calibrate
recommended``, from prompts that are read twice, as KVzip does; but by the damage to heads' outputs,
and to the model's own answers about the prompt, and not by attention alone (below). No labels are
needed. Then scoring a pair costs two dot products, no query is looked at, and one file serves every
budget, with the question known or not. One ranking over all heads and layers says what each head
keeps, or where that has to be known before a prompt is read (inside vLLM, layer by layer), the
ranking that comes out on average; the first token stays in all of them.

Keys are turned by their positions, and the maps know those of the profile's prompts: a key behind
the longest of them is read as if it stood at its end (:mod:`foveate.profiles.far_keys`).

S and M are the sum and the maximum, over queries and query heads, of the damage d that a pair's
loss does to the heads' outputs while the prompt is read a second time (:func:`squared_damage`); F
is what it does to the model's own answers (:func:`answer_damage`), over the questions that are
asked about the prompt. Where they cannot be had, fewer of them are used, and a profile says which:

| target | a pair is worth |
|---|---|
| "answers" | the mean of .5 log S, log M and F |
| "damage" | the mean of .5 log S and log M: no questions, or no gradients |
| "attention" | the log of the most attention (KVzip): no output projection that can be read |

Without a profile it takes the one that is installed for the model (``foveate profiles``). Without
that it is the best here that needs none and reads the prompt once: how a key differs from all
others (KeyDiff) and how large its value is, in one ranking. The log, "foveate", says so once, at
INFO.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Literal

from foveate.errors import InvalidParameter
from foveate.methods.recommended.fitting import SecondReading as SecondReading  # registers itself
from foveate.methods.recommended.foretold import ForetoldReconstruction
from foveate.methods.recommended.head_levels import HeadLevels, LayerLevels
from foveate.policies.method import Amount, Policy, method
from foveate.policies.parameters import Count, Recent
from foveate.policies.protocols import Budget, Score
from foveate.stages import KeyDifference, OneRanking, TopK

VALUE = 0.15
"""How much a value's norm counts without a profile."""
Heads = Literal["by_prompt", "by_profile", "by_layer"]


@cache
def say_once() -> None:
    """That a profile would do better."""
    logging.getLogger("foveate").info(
        "recommended has no profile: unless one is installed for the model, it ranks pairs by how "
        "their keys differ and how large their values are. 'foveate calibrate recommended --model "
        "MODEL' makes one in minutes, and kvzip needs none, at the price of a second prefill."
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
    """Keeps the pairs whose loss would do most to heads' outputs and answers, foretold one by one.

    Made by ``foveate calibrate recommended --model MODEL``, one profile serves every budget, and
    prompts with or without their question. ``recent`` tokens are always kept: by default the
    last one, which an answer begins with, and a quarter of the budget without a profile. What each
    head keeps follows from the prompt, or ``by_profile`` from those that the profile was made with.

    Args:
        heads: What each head keeps: by the prompt, by the profile, or as much as all heads of its
            layer, by the profile.

    Raises:
        InvalidParameter: heads=by_profile or by_layer without a profile.

    Defaults:
        what was measured, in [which_method.md](which_method.md)
    """
    split: Budget = OneRanking(amount=budget)
    if heads != "by_prompt":
        if profile is None:
            raise InvalidParameter(f"heads={heads!r} needs a profile: give profile=FILE.")
        levels = HeadLevels if heads == "by_profile" else LayerLevels
        split = levels(amount=budget, profile=profile, of="recommended")
    if profile is None:
        say_once()
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
