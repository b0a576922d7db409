"""PrefixKV: layer budgets by binary search on cumulative importance.

Importance is concentrated in some layers and spread out in others. Keeping the same number in each
loses most where it is spread out. So every layer keeps the shortest prefix of its tokens, sorted by
importance, that has the same share p of its importance (sections 3.2 and 3.3).

Differences from the paper, which allows them ("scale ... to meet the target"): the search ends
after 64 steps at most, or as soon as it is within `delta`, and its result is scaled to the budget.
The rounding error is spread over the layers one token at a time, so the total is exact. The curve
is taken in the order in which tokens are kept: the first and the last token (or other tokens that
the selection protects) come first.

Differences from the authors' code:

* The search has no cap there and never ends on equal scores.
* The total is exact; the release stops within 5 tokens of its aim, rescales and truncates, and so
  keeps more than the budget.
* The ratio while decoding is exact, where the release's rounding can drop a token one step later.
* New queries keep their true positions, where the release restarts them at layer 0's compressed
  length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from fractions import Fraction
from typing import Annotated, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foveate.cache.layer import Scored
from foveate.errors import InvalidParameter
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Count, Factor, Positive, Range, Recent
from foveate.policies.protocols import NoMerge, Scope
from foveate.profiles.author_files import LAYER_FILES, read_forgotten
from foveate.profiles.profile import Numbers, Profile, Run, calibration, load
from foveate.stages import ColumnSums, FixedSlot, HeadMean, MergeNearest, TopK
from foveate.stages.budget.bases import AmountBudget
from foveate.stages.budget.exact_totals import by_layer, fill
from foveate.stages.merge import By
from foveate.stages.score.normalise import over_tokens
from foveate.stages.when import From

STEPS = 64  # halvings of [0, 1] after which p is as exact as a float64 can be
Steps = Annotated[int, Range(1, STEPS)]


# The paper's curves and its search, in order


def priority(scored_layer: Scored) -> Float[Tensor, "b n"]:
    """Return P_l, the share of a layer's importance in its first o tokens (section 3.2).

    There is one number for every o = 1 ... n.

    Where every head has its own ranking, it is the share when each head keeps its first o tokens.
    """
    order = scored_layer.scores.values.argsort(dim=-1, descending=True, stable=True)
    importance = (
        over_tokens(scored_layer.layer.slots)
        .lifted(scored_layer.importance)
        .masked_fill(~scored_layer.layer.valid, 0.0)
    )
    ranked = importance.double().gather(-1, order).mean(1)
    total = ranked.sum(-1, keepdim=True)
    equal = torch.ones_like(ranked)  # nothing received anything: no token matters more
    ranked = torch.where(total > 0, ranked, equal)
    return ranked.cumsum(-1) / ranked.sum(-1, keepdim=True)


def gini(curve: Float[Tensor, "*x n"]) -> Float[Tensor, "*x"]:
    """Return twice the area between the Lorenz curve and the line of equality (section 3.2).

    0: all tokens matter alike; towards 1: one token has all importance.
    """
    n = curve.shape[-1]
    before = torch.nn.functional.pad(curve, (1, 0))[..., :-1]
    return (curve + before).sum(-1) / n - 1


class PrefixSearch(NamedTuple):
    """Result of the search: the share p, the tokens of each layer, and the steps taken."""

    p: float
    tokens: Int[Tensor, "L"]
    steps: int


def search(
    curves: Float[Tensor, "L n"], total: int, *, tolerance: float = 0.0, steps: int = STEPS
) -> PrefixSearch:
    """Find the p at which the layers' prefixes, min{o : P_l(o) >= p}, add up to ``total``.

    Algorithm 1. The sum may miss ``total`` by ``tolerance`` tokens; otherwise the result is the
    nearest that ``steps`` halvings reach.
    """
    low, high = 0.0, 1.0
    for step in range(1, steps + 1):  # noqa: B007 (the number of steps is a result)
        p = (low + high) / 2
        tokens = _prefixes(curves, p)
        difference = int(tokens.sum()) - total  # eq. 1, times N: sum of R_l, less r L
        if abs(difference) <= tolerance:
            break
        low, high = (p, high) if difference < 0 else (low, p)
    return PrefixSearch(p, tokens, step)


def _prefixes(curves: Float[Tensor, "L n"], p: float) -> Int[Tensor, "L"]:
    """Return R_l = min{o : P_l(o) >= p} of every layer, in tokens (eq. 1)."""
    shares = torch.full((len(curves), 1), p, dtype=curves.dtype, device=curves.device)
    return torch.searchsorted(curves, shares)[:, 0].add(1).clamp_max(curves.shape[1])


def scaled(tokens: Int[Tensor, "L"], total: int) -> Int[Tensor, "L"]:
    """Scale the result of a search that stopped short of its aim to ``total`` (section 3.3)."""
    return (tokens.double() * total / int(tokens.sum())).round().to(tokens.dtype)


@stage("prefix_budget")
class PrefixBudget(AmountBudget):
    """PrefixKV's budget over all layers, so the full cache is stored until the prefill ends.

    ``profile`` is a file of ratios measured beforehand, at this amount; without one every prompt is
    searched. The search ends once the layers' ratios add up to the budget (r L of eq. 1) within
    ``delta``, or after ``steps`` steps, and its result is scaled to the budget (section 3.3; Tables
    10 and 11).

    Raises:
        InvalidParameter: a profile, together with a tolerance or steps for the search that it
            replaces.
        ProfileMismatch: a profile of another method or budget.
    """

    profile: str | None = None
    delta: Factor = 0.0
    steps: Steps = STEPS
    scope: Scope = field(default="model", init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (profile := self.calibrated) is None:
            return
        if (self.delta, self.steps) != (0, STEPS):
            raise InvalidParameter(
                f"delta={self.delta} and steps={self.steps} control the search in each prompt, "
                f"which profile={self.profile!r} replaces: leave one of them out. To measure a "
                "profile with them, run 'foveate calibrate prefixkv:budget=...,delta=...'."
            )
        profile.check_budget(str(self.amount))

    @property
    def calibrated(self) -> Profile | None:
        """Profile in use, if any."""
        return None if self.profile is None else load(self.profile, "prefixkv")

    @property
    def foreseeable(self) -> bool:
        """True with a profile: counts are then known before the prefill."""
        return self.profile is not None

    def by_length(self, depth: int) -> Ratios:
        """Return the profile's ratios for ``depth`` layers.

        Raises:
            InvalidParameter: no profile.
            ProfileMismatch: a profile of another number of layers.
        """
        if (profile := self.calibrated) is None:
            raise InvalidParameter(f"{self!r} has no profile: its ratios depend on the prompt.")
        profile.check_layers(depth)
        return Ratios(tuple(map(Fraction, profile.by_layer)))

    def __call__(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"]
    ) -> list[Int[Tensor, "b h"]]:
        wishes = [self._wish(scored, row, int(t) * len(scored)) for row, t in enumerate(tokens)]
        return by_layer(scored, torch.stack(wishes), tokens)

    def _wish(self, scored: Sequence[Scored], row: int, total: int) -> Int[Tensor, "L"]:
        if self.foreseeable:
            length = int(scored[0].layer.lengths[row])
            wish = self.by_length(scored[0].layer.depth).wish(length)
            return wish[[scored_layer.layer.ordinal for scored_layer in scored]]
        return scaled(self.found(scored, row, total).tokens, total)

    def found(self, scored: Sequence[Scored], row: int, total: int) -> PrefixSearch:
        """Search one row's layers for ``total`` tokens over all layers."""
        curves = [priority(scored_layer)[row] for scored_layer in scored]
        longest = max(len(curve) for curve in curves)
        padded = [torch.nn.functional.pad(c, (0, longest - len(c)), value=1.0) for c in curves]
        stacked = torch.stack([c.to(padded[0].device) for c in padded])
        tolerance = self.delta * int(scored[0].layer.lengths[row])
        return search(stacked, total, tolerance=tolerance, steps=self.steps)


class Ratios(NamedTuple):
    """Each layer's share of a prompt, measured beforehand (section 3.3)."""

    by_layer: tuple[Fraction, ...]

    def wish(self, length: int) -> Int[Tensor, "L"]:
        """Return tokens of each layer, before they are adjusted to the exact total."""
        wished = [round(ratio * length) for ratio in self.by_layer]
        return torch.tensor(wished, dtype=torch.long, device="cpu")

    def __call__(self, tokens: int, protected: int, length: int) -> tuple[int, ...]:
        """Return each layer's tokens for a prompt of ``length``, ``tokens`` on average."""
        wish, layers = self.wish(length), len(self.by_layer)
        least, limit = (torch.full_like(wish, n) for n in (min(protected, length), length))
        return tuple(fill(wish, least, limit, tokens * layers).tolist())


@calibration("prefixkv", at_a_budget=True)
def ratios(run: Run) -> Numbers:
    """Return each layer's share of the prompt, averaged over samples (section 3.3)."""
    lengths = run.lengths[:, None]
    return [float((kept.cpu().float() / lengths.cpu()).mean()) for kept in run.kept]


LAYER_FILES["prefixkv"] = read_forgotten


@method("wang2025prefixkv", adds=("budget", "when"), foretold="profile=FILE,when=after_prefill")
def prefixkv(
    *,
    budget: Amount,
    profile: str | None = None,
    delta: Factor = 0.0,
    steps: Steps = STEPS,
    merging: Literal["none", "position", "feature"] = "none",
    sinks: Count = 1,
    recent: Recent = 1,
    distance: Positive = 25,
    counted_from: From = "prompt",
) -> Policy:
    """Tokens that have the same share of each layer's attention, so counts differ by layer.

    Eq. 1: R_l = min{o : P_l(o) >= p}, with p by binary search (Algorithm 1). While decoding each
    layer stays at its ratio of the growing length. ``delta`` is Table 10 and ``steps`` Table 11 (a
    search in every prompt, without a profile), ``merging`` Table 12. The first ``sinks`` and the
    last ``recent`` tokens are always kept.

    Args:
        delta: Tolerance of the search for the layers' ratios, as a share of the prompt.
        steps: Maximum number of steps of that search.
        distance: Slots between the reference and the pairs evicted while decoding, e.g. 25.
        counted_from: Reference of the distance: the prompt's end, or the newest token.

    Defaults:
        release; section 3.3 gives no tolerance, the release stops within 5 tokens
    """
    by: By = "position" if merging == "position" else "cosine"
    return Policy(
        score=HeadMean(of=ColumnSums()),
        budget=PrefixBudget(amount=budget, profile=profile, delta=delta, steps=steps),
        select=TopK(sinks=sinks, recent=recent),
        merge=NoMerge() if merging == "none" else MergeNearest(by=by, how="averaged"),
        when=FixedSlot(distance=distance, counted_from=counted_from),
    )
