"""MixKV: importance mixed with diversity, head by head.

Keys of images repeat themselves, in some heads far more than in others. Where they do, the highest
importance picks near copies; so a head weighs diversity by how redundant its keys are. Equations 2
to 5 below, in order; the score wraps any importance, and any budget can follow.

Departs from the paper as the authors' working code does, with the paper's reading as an option:
minima, maxima and means are taken over the tokens before the window (`normalise_over="all"`: over
all), diversity is scaled to the mean of the extrinsic importance, which is about half the paper's
weight (`diversity_scale="importance"`), and the extrinsic importance is pooled (`pool="none"`).

Departs from both in one point: eq. 4, a mean of cosines, can fall below zero, and eq. 5 would then
take diversity off an importance of more than its weight. It is clamped at zero, so that heads whose
keys point apart go by importance alone; `clamped=False` is the equation as printed.

Departs from the authors' code in: an epsilon in every normalisation (their value norms have none),
and the offline redundancy, which is a profile of the model at hand (`foveate calibrate mixkv`);
the release reads one table, made for a Qwen model, whatever the model.
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
from foveate.profiles.profile import Numbers, Profile, Run, calibration, load
from foveate.profiles.published import read_redundancies
from foveate.stages import Pool, Reduction, TopK, Uniform, WindowAttention
from foveate.stages.recent import before, is_recent
from foveate.stages.score.bases import Wrapper
from foveate.stages.score.normalise import over_tokens, over_tokens_before

Intrinsic = Literal["value", "key", "none"]
Mix = Literal["headwise", "sum", "importance", "diversity"]
Scale = Literal["extrinsic", "importance"]
Domain = Literal["prefix", "all"]


# The paper's equations, in its order. The class below takes both statistics of the keys from one
# fused pass over them (`ops.mix_statistics`), which a test holds to be these.


def directions(
    k: Float[Tensor, "b h n d"], valid: Bool[Tensor, "b h n"]
) -> Float[Tensor, "b h n d"]:
    """Keys of length one; zeros at padding, which may hold anything."""
    return F.normalize(k.float(), dim=-1).masked_fill(~valid[..., None], 0.0)


def diversity(k: Float[Tensor, "b h n d"], valid: Bool[Tensor, "b h n"]) -> Float[Tensor, "b h n"]:
    """Section 3.2: minus the similarity of each key to the mean direction."""
    unit, tokens = directions(k, valid), valid.sum(-1).clamp_min(1)
    mean = unit.sum(2) / tokens[..., None]
    return -(unit * mean[:, :, None]).sum(-1)


def redundancy(k: Float[Tensor, "b h n d"], valid: Bool[Tensor, "b h n"]) -> Float[Tensor, "b h"]:
    """Eq. 4: mean cosine of all pairs of different keys, which may be below zero. In O(T): the sum
    of all directions, times itself, is the sum of all cosines, those of a key with itself included.
    """
    tokens = valid.sum(-1)
    of_pairs = directions(k, valid).sum(2).square().sum(-1) - tokens  # eq. 3, less the T of i = j
    return of_pairs / (tokens * (tokens - 1)).clamp_min(1)


def mixed(
    importance: Float[Tensor, "b h n"], div: Float[Tensor, "b h n"], r: Float[Tensor, "b h 1"]
) -> Float[Tensor, "b h n"]:
    """Eq. 5: (1 - r) importance + r diversity, head by head."""
    return importance.lerp(div, r)


@stage("mix_diversity")
class MixDiversity(Wrapper):
    """MixKV's score over the importance that it wraps (Algorithm 1, lines 5 to 11). ``window`` are
    the last tokens, left out of the "prefix"; ``profile`` is a file of redundancies by layer and KV
    head (offline weights). The note "redundancy" is r, [b, h]; ``clamped`` at zero, or as eq. 4
    gives it. The part "extrinsic" is the score that is wrapped.
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
                "clamped=False is about a redundancy that is measured in each prompt, and "
                f"profile={self.profile!r} replaces that. Leave one of them out; a profile that is "
                "calibrated with clamped=False holds what eq. 4 gives."
            )

    @property
    def head_by_head(self) -> bool:
        return self.profile is None  # which has a number for every head of a layer

    @property
    def calibrated(self) -> Profile | None:
        """The profile in use."""
        return None if self.profile is None else load(self.profile, "mixkv")

    def __call__(self, layer: Layer) -> Scores:
        scores = self.of(layer)
        everywhere = self.normalise_over == "all"
        domain = (
            over_tokens(layer.slots) if everywhere else over_tokens_before(layer.slots, self.window)
        )
        extrinsic = scores.values.float()
        if everywhere:  # the window's own slots count with what they are paid
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
    """The redundancy of every layer and KV head: the offline weights of Table 4."""
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
    """Keeps what is important, and in heads with redundant keys also what differs from the rest.

    Table 4: mix="importance" with intrinsic "none", "key" or "value"; mix="diversity"; "sum";
    "headwise" with a profile (offline), or without (online). `clamped` keeps a redundancy that was
    found online from falling below zero.

    Args:
        intrinsic: What importance has beside attention: the norm of values, of keys, none.
        mix: How importance and diversity become one score.
        diversity_scale: What diversity is scaled to.
        normalise_over: The tokens that minima, maxima and means are taken over.
        clamped: Keep redundancy from falling below zero.

    Defaults:
        window: section 3.2; kernel, pooling and what is normalised: the release
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
