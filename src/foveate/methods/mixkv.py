"""MixKV: importance mixed with diversity, head by head.

Keys of images repeat themselves, in some heads far more than in others. There the highest
importance picks near copies, so a head weighs diversity by how redundant its keys are. Equations 2
to 5 are below, in order; the score can wrap any importance, and any budget can follow.

Differences from the paper follow the authors' working code, with the paper's version as an option:

* Minima, maxima and means are taken over the tokens before the window (`normalise_over="all"`: over
  all).
* Diversity is scaled to the mean of the extrinsic importance, which is about half the paper's
  weight (`diversity_scale="importance"`).
* The extrinsic importance is pooled (`pool="none"`).

Difference from both: eq. 4, a mean of cosines, can fall below zero, and eq. 5 would then subtract
diversity from an importance that weighs more than 1. It is clamped at zero, so that heads whose
keys point apart go by importance alone; `clamped=False` is the equation as printed.

Differences from the authors' code: every normalisation has an epsilon (their value norms have
none), and the offline redundancy is a profile of the model at hand (`foveate calibrate mixkv`),
where the release reads one table, measured on a Qwen model, for every model.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from foveate.cache.layer import Layer, Scores
from foveate.errors import InvalidParameter
from foveate.ops.mix_statistics import mix_statistics
from foveate.policies.heads import HEAD_FILES, HeadFile
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Kernel, Recent, Window
from foveate.profiles.author_files import read_redundancies
from foveate.profiles.profile import Numbers, Profile, Run, calibration, load
from foveate.stages import Pool, Reduction, TopK, Uniform, WindowAttention
from foveate.stages.recent import before, is_recent
from foveate.stages.score.bases import Wrapper
from foveate.stages.score.normalise import over_tokens, over_tokens_before

Intrinsic = Literal["value", "key", "none"]
Mix = Literal["headwise", "sum", "importance", "diversity"]
Scale = Literal["extrinsic", "importance"]
Domain = Literal["prefix", "all"]


# The paper's equations, in its order. The class below computes both statistics of the keys in one
# fused pass over them (`ops.mix_statistics`), which a test compares with these functions.


def directions(
    k: Float[Tensor, "b h n d"], valid: Bool[Tensor, "b h n"]
) -> Float[Tensor, "b h n d"]:
    """Normalise keys to unit length; zeros at padding, which may contain anything."""
    return F.normalize(k.float(), dim=-1).masked_fill(~valid[..., None], 0.0)


def diversity(k: Float[Tensor, "b h n d"], valid: Bool[Tensor, "b h n"]) -> Float[Tensor, "b h n"]:
    """Return minus the similarity of each key to the mean direction (section 3.2)."""
    unit, tokens = directions(k, valid), valid.sum(-1).clamp_min(1)
    mean = unit.sum(2) / tokens[..., None]
    return -(unit * mean[:, :, None]).sum(-1)


def redundancy(k: Float[Tensor, "b h n d"], valid: Bool[Tensor, "b h n"]) -> Float[Tensor, "b h"]:
    """Return the mean cosine of all pairs of different keys, which may be negative (eq. 4).

    It takes O(T): the squared norm of the sum of all directions is the sum of all cosines,
    including those of each key with itself.
    """
    tokens = valid.sum(-1)
    of_pairs = directions(k, valid).sum(2).square().sum(-1) - tokens  # eq. 3, less the T of i = j
    return of_pairs / (tokens * (tokens - 1)).clamp_min(1)


def mixed(
    importance: Float[Tensor, "b h n"], div: Float[Tensor, "b h n"], r: Float[Tensor, "b h 1"]
) -> Float[Tensor, "b h n"]:
    """Return (1 - r) importance + r diversity, head by head (eq. 5)."""
    return importance.lerp(div, r)


@stage("mix_diversity")
class MixDiversity(Wrapper):
    """MixKV's score over the importance that it wraps (Algorithm 1, lines 5 to 11).

    ``window`` is the number of last tokens, left out of the "prefix". ``profile`` is a file of
    redundancies by layer and KV head (offline weights). The note "redundancy" is r, [b, h], clamped
    at zero if ``clamped``, else as eq. 4 gives it. The part "extrinsic" is the wrapped score.
    """

    window: Recent = 32
    intrinsic: Intrinsic = "value"
    mix: Mix = "headwise"
    diversity_scale: Scale = "extrinsic"
    normalise_over: Domain = "prefix"
    profile: str | None = None
    clamped: bool = True

    def __post_init__(self) -> None:
        if self.profile is None:
            return
        load(self.profile, "mixkv")
        if not self.clamped:
            raise InvalidParameter(
                "clamped=False applies to a redundancy that is measured in each prompt, which "
                f"profile={self.profile!r} replaces. Leave one of them out; a profile that is "
                "calibrated with clamped=False has the values of eq. 4."
            )

    @property
    def head_by_head(self) -> bool:
        return self.profile is None  # a profile has numbers for all heads of a layer

    @property
    def calibrated(self) -> Profile | None:
        """Profile in use, if any."""
        return None if self.profile is None else load(self.profile, "mixkv")

    def __call__(self, layer: Layer) -> Scores:
        scores = self.of(layer)
        everywhere = self.normalise_over == "all"
        domain = (
            over_tokens(layer.slots) if everywhere else over_tokens_before(layer.slots, self.window)
        )
        extrinsic = scores.values.float()
        if everywhere:  # the window's own slots count with the attention that they receive
            window = is_recent(layer.slots, self.window)
            extrinsic = torch.where(window, scores.parts.get("observed", extrinsic), extrinsic)
        extrinsic = domain.lifted(extrinsic)
        level = domain.mean(extrinsic)

        measured = mix_statistics(layer.k, layer.v, None if layer.slots.all_valid else layer.valid)
        both = measured.of_slots[1:]  # value norms and diversity
        if self.intrinsic == "key":
            both = torch.stack((-measured.key_norm, measured.diversity))
        norm, div = domain.min_max_to_mean(both, level).unbind()
        importance = extrinsic if self.intrinsic == "none" else extrinsic + norm  # eq. 2
        if self.diversity_scale == "importance":
            div = domain.min_max_to_mean(both[1], domain.mean(importance))
        r = self._redundancy(layer, measured.redundancy)
        values = self._mixed(importance, div, r[..., None])
        importance = values if everywhere else values * before(layer.slots, self.window)
        parts = {**scores.parts, "importance": importance, "extrinsic": scores.values}
        return Scores(values, parts, {**scores.notes, "redundancy": r})

    def _mixed(
        self,
        importance: Float[Tensor, "b h n"],
        div: Float[Tensor, "b h n"],
        r: Float[Tensor, "b h 1"],
    ) -> Float[Tensor, "b h n"]:
        if self.mix == "headwise":
            return mixed(importance, div, r)
        if self.mix == "sum":
            return importance + div
        return importance if self.mix == "importance" else div

    def _redundancy(self, layer: Layer, online: Float[Tensor, "b h"]) -> Float[Tensor, "b h"]:
        if (profile := self.calibrated) is None:
            return online.clamp_min(0.0) if self.clamped else online
        profile.check_layers(layer.depth)
        profile.check_heads(layer)
        table = layer.k.new_tensor(profile.by_layer[layer.ordinal], dtype=torch.float32)
        return table.expand(layer.k.shape[:2])


@calibration("mixkv")
def redundancies(run: Run) -> Numbers:
    """Return the redundancy of every layer and KV head: the offline weights of Table 4."""
    return [note["redundancy"].mean(0).tolist() for note in run.notes]


HEAD_FILES["mixkv"] = HeadFile("KV", read_redundancies, only=False)


@method("liu2026mixkv", adds=("score",), wraps=True)
def mixkv(
    *,
    budget: Amount,
    window: Window = 32,
    kernel: Kernel = 5,
    pool: Pool = "avg",
    group: Reduction = "mean",
    intrinsic: Intrinsic = "value",
    mix: Mix = "headwise",
    diversity_scale: Scale = "extrinsic",
    normalise_over: Domain = "prefix",
    profile: str | None = None,
    clamped: bool = True,
) -> Policy:
    """Tokens that are important, and in heads with redundant keys also unlike the rest.

    Score: (1 - r) importance + r diversity, eqs. 2 to 5, where r is the redundancy of a head's
    keys.

    The rows of Table 4: mix="importance" with intrinsic "none", "key" or "value"; mix="diversity";
    "sum"; "headwise" with a profile (offline), or without (online). `clamped` keeps a redundancy
    that is measured online from falling below zero.

    Args:
        intrinsic: Importance beside attention: the norm of values, of keys, or none.
        mix: Combination of importance and diversity, e.g. headwise.
        diversity_scale: Mean that diversity is scaled to: of extrinsic importance, or of all.
        normalise_over: Tokens that minima, maxima and means are taken over.
        clamped: Keep redundancy from falling below zero.

    Defaults:
        `window`: section 3.2; `kernel`, `pool`, `normalise_over`: the release
    """
    attention = WindowAttention(window=window, kernel=kernel, pool=pool, group=group)
    score = MixDiversity(
        of=attention,
        window=window,
        intrinsic=intrinsic,
        mix=mix,
        diversity_scale=diversity_scale,
        normalise_over=normalise_over,
        profile=profile,
        clamped=clamped,
    )
    # Algorithm 1: the window stays, and the best B - |window| before it (lines 3 and 12)
    return Policy(score=score, budget=Uniform(amount=budget), select=TopK(recent=window))
