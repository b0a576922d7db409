"""Foveate's own recipe: what the loss of a pair would do, foretold from the pair by itself.

A profile holds, for every KV head, a linear map from a pair (key, value, and a few facts of both)
to the logarithm of what its loss does. It is fitted once per model, by ``foveate calibrate
recommended``, from prompts that are read twice, as KVzip does; but by the damage to heads' outputs,
and to the model's own answers about the prompt, and not by attention alone
(below). No labels are needed. Then scoring a pair costs two
dot products, no query is looked at, and one file serves every budget, with the question known or
not. One ranking over all heads and layers says what each head keeps, or where that has to be known
before a prompt is read (inside vLLM, layer by layer), the ranking that comes out on average; the
first token stays in all of them.

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
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import ClassVar, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from foveate.core.amount import Amount
from foveate.core.gathering import GATHERINGS, Asked, Sums
from foveate.core.layer import Layer, Scores
from foveate.core.method import method
from foveate.core.parameters import Count, Positive, Recent
from foveate.core.policy import Policy
from foveate.core.protocols import Budget, Rereading, Score
from foveate.core.spec import stage
from foveate.core.tensor_profile import TensorProfile, load_tensors
from foveate.errors import InvalidParameter, ProfileMismatch
from foveate.ops.rotation import Rotation
from foveate.stages.budget import OneRanking
from foveate.stages.budget.exact import filled
from foveate.stages.budget.head_table import ByHead, Rule
from foveate.stages.score import KeyDifference
from foveate.stages.score.damage import answer_damage, squared_damage
from foveate.stages.score.reconstruction import NOTED, Reconstruction
from foveate.stages.select import TopK

FACTS = 5
"""Beside the channels of key and value: see :func:`facts`."""
RIDGE = 0.01
Target = Literal["answers", "damage", "attention"]
TARGETS: tuple[str, ...] = get_args(Target)  # the best first
LEAST = 1e-6
"""The least attention or damage that is told apart from none."""
UNASKED = -1.0
"""Stands in sums of squares at pairs that no question came after."""
VALUE = 0.15
"""How much a value's norm counts without a profile."""
LEVELS = 256
"""Into how many equal shares a head's pairs are cut."""
Heads = Literal["by_prompt", "by_profile"]


def facts(layer: Layer) -> Float[Tensor, "b h n f"]:
    """Of every pair: the key's norm and its square, the value's norm and its logarithm, and the
    cosine between the key and the mean of all keys' directions.
    """
    k, v, real = layer.k.float(), layer.v.float(), layer.valid[..., None]
    direction = F.normalize(k, dim=-1).masked_fill(~real, 0.0)
    mean = direction.sum(2, keepdim=True) / real.sum(2, keepdim=True).clamp_min(1)
    key, value = k.norm(dim=-1), v.norm(dim=-1)
    likeness = F.cosine_similarity(direction, mean, dim=-1)
    found = (key, key.square(), value, value.clamp_min(LEAST).log(), likeness)
    return torch.stack(found, dim=-1).masked_fill(~real, 0.0)


@stage("foretold_reconstruction")
@dataclass(frozen=True, kw_only=True)
class ForetoldReconstruction:
    """What the profile's target is of a pair, by the linear maps of a ``profile``: a logarithm of
    what its loss would do; in float32.
    """

    profile: str

    def __post_init__(self) -> None:
        _ = self.calibrated

    @property
    def calibrated(self) -> TensorProfile:
        """The profile in use."""
        return load_tensors(self.profile, "recommended")

    def queries(self, tokens: int) -> int:
        return 0

    def __call__(self, layer: Layer) -> Scores:
        (_, h, _, d), e = layer.k.shape, layer.v.shape[-1]
        of_key, of_value, of_facts, offset = self.calibrated.of(
            layer, of_key=(h, d), of_value=(h, e), of_facts=(h, FACTS), offset=(h,)
        )
        values = offset[:, None] + (facts(layer) @ of_facts[..., None])[..., 0]
        for pairs, weights in ((layer.k, of_key), (layer.v, of_value)):
            values = values + (pairs.float() @ weights[..., None])[..., 0]
        return Scores(values)


def levels(values: Float[Tensor, "h n"]) -> Float[Tensor, "h 256"]:
    """What stands in the middle of each of a head's ``LEVELS`` shares of its pairs, in falling
    order; between two pairs it is interpolated.
    """
    middles = (torch.arange(LEVELS, device=values.device, dtype=values.dtype) + 0.5) / LEVELS
    places = (middles * values.shape[-1] - 0.5).clamp(0, values.shape[-1] - 1)
    ranked = values.sort(dim=-1, descending=True).values
    below = places.floor().long()
    above = (below + 1).clamp_max(values.shape[-1] - 1)
    return ranked[:, below].lerp(ranked[:, above], places - below)


@stage("head_levels")
@dataclass(frozen=True, kw_only=True)
class HeadLevels(ByHead):
    """A head keeps the share of the prompt that it has of all heads' best pairs on average, by the
    ``levels`` of a ``profile``: a file of tensors of the method named ``of``. So the numbers are
    known before a prompt is read, and layers are compressed one by one.
    """

    @property
    def calibrated(self) -> TensorProfile:
        """The profile in use."""
        return load_tensors(self.profile, self.of)

    def by_head(self, depth: int, heads: int) -> Rule:
        profile = self.calibrated
        profile.check_layers(depth)
        for place, held in enumerate(profile.by_layer):
            if len(held["levels"]) != heads:
                raise ProfileMismatch(
                    f"this {self.of} profile of {profile.model!r} has {len(held['levels'])} KV "
                    f"heads in layer {place}, the model {heads}. {profile.way_out}"
                )
        return LevelCounts(self.profile, self.of)


class LevelCounts(NamedTuple):
    """The rule of a profile, given everything but the prompt."""

    profile: str
    of: str

    def __call__(self, tokens: int, protected: int, length: int) -> tuple[int, ...]:
        """Tokens of each KV head of a prompt of ``length``, ``tokens`` on average."""
        return _counts(load_tensors(self.profile, self.of), tokens, protected, length)


@lru_cache(maxsize=256)
def _counts(profile: TensorProfile, tokens: int, protected: int, length: int) -> tuple[int, ...]:
    """As many shares of a head as are among the best of all heads; then pairs that add up."""
    table = torch.cat([held["levels"] for held in profile.by_layer])
    number = min(table.numel(), round(table.numel() * tokens / length))
    best = table.new_zeros(table.numel(), dtype=torch.bool)
    best[table.flatten().topk(number).indices] = True
    wish = (best.view_as(table).sum(-1).double() * length / LEVELS).round().long().tolist()
    low, high = [min(protected, length)] * len(wish), [length] * len(wish)
    return tuple(filled(wish, low, high, tokens * len(wish)))


@dataclass(frozen=True, kw_only=True)
class ReadingDamage:
    """Notes of every pair S ("sum"), the square of M ("most"), and the sum of the squares of what
    its loss does to answers ("answers"), ``UNASKED`` where there are none.

    Args:
        chunk: the most tokens of the prompt that are read again at a time.
        questions: token ids of each, up to where the model answers.
        after: tokens of the prompt that they follow.
        longest: the most tokens of an answer.
    """

    reads_output_weight: ClassVar[bool] = True
    reads_residual_norm: ClassVar[bool] = True
    chunk: Positive = 2048
    questions: tuple[tuple[int, ...], ...] = ()
    after: Count = 0
    longest: Positive = 24

    @property
    def reading(self) -> Rereading:
        """The prompt, then the questions."""
        return Rereading(
            self.chunk, longest=self.longest, questions=self.questions, after=self.after
        )

    def queries(self, tokens: int) -> int:
        return 0

    def again(self, layer: Layer) -> Mapping[str, Tensor]:
        """Sums and maxima over one more piece of the prompt."""
        prompt = layer.k.shape[2] - layer.q.shape[2]
        nothing = layer.k.new_zeros((*layer.k.shape[:2], prompt), dtype=torch.float32)
        total, most = (layer.state.get(name, nothing) for name in ("sum", "most"))
        for some in squared_damage(layer):
            total = total + some[..., :prompt].sum((2, 3))
            most = torch.maximum(most, some[..., :prompt].amax((2, 3)))
        unasked = layer.state.get("answers", nothing + UNASKED)
        return {"sum": total, "most": most, "answers": unasked}

    def answered(self, layer: Layer, gradient: Float[Tensor, "b m hq e"]) -> Mapping[str, Tensor]:
        """One more question adds the squares of what its answer would lose."""
        seen = layer.k.shape[2] - layer.q.shape[2]
        total = layer.state["answers"].clone()
        lost = answer_damage(layer, gradient)[..., :seen].square()
        total[..., :seen] = total[..., :seen].clamp_min(0) + lost
        return {"answers": total}

    def __call__(self, layer: Layer) -> Scores:
        return Scores(layer.state["sum"])


def watched(target: str, questions: tuple[tuple[int, ...], ...], after: int) -> Score:
    """The score whose notes :func:`worth` reads."""
    if target == "attention":
        return Reconstruction()
    asked = questions if target == "answers" else ()
    return ReadingDamage(questions=asked, after=after)


def worth(layer: Layer) -> Float[Tensor, "b h n"]:
    """What the maps are to foretell of each pair, by the notes that the layer's state has: those of
    all three where a question came after the pair, otherwise of S and M.
    """
    if NOTED in layer.state:
        return layer.state[NOTED].clamp_min(LEAST).log()
    s, m, f = (_half_log(layer.state[name]) for name in ("sum", "most", "answers"))
    return torch.where(layer.state["answers"] < 0, (s + m) / 2, (s + m + f) / 3)


def answered(layer: Layer) -> bool:
    """Whether any answer counted."""
    return "answers" in layer.state and bool((layer.state["answers"] >= 0).any())


def _half_log(squares: Float[Tensor, "b h n"]) -> Float[Tensor, "b h n"]:
    return squares.clamp_min(LEAST**2).log() / 2


class SecondReading:
    """Ridge regression, head by head, of what a pair is worth on the
    pair: sums of products over all pairs of all prompts.
    """

    turns_back: ClassVar[bool] = False
    watched: ClassVar[Score | None] = None
    targets: ClassVar[tuple[str, ...]] = TARGETS
    names: ClassVar[tuple[str, ...]] = ("levels", "of_facts", "of_key", "of_value", "offset")

    def watching(self, target: str, asked: Asked) -> Score:
        return watched(target, asked.questions, asked.after)

    def reached(self, target: str, sums: Sums) -> str:
        return "damage" if target == "answers" and not sums["answered"] else target

    def gather(self, layer: Layer, rotation: Rotation | None) -> Sums:
        told = worth(layer)
        real = layer.valid[..., None]
        ones = torch.ones_like(told)[..., None]
        given = torch.cat([ones, facts(layer), layer.k.float(), layer.v.float()], dim=-1)
        given = given.masked_fill(~real, 0.0).double().transpose(0, 1).flatten(1, 2)
        rows = zip(told, layer.valid[:, 0], strict=True)
        each = told.masked_fill(~layer.valid, 0.0).double().transpose(0, 1).flatten(1)
        return {
            "products": given.transpose(1, 2) @ given,
            "told": (given.transpose(1, 2) @ each[..., None])[..., 0],
            "of_key": told.new_zeros(layer.k.shape[-1]),  # for its length
            "levels": torch.stack([levels(row[:, one]) for row, one in rows]).sum(0),
            "answered": told.new_tensor(float(answered(layer))),
            "prompts": told.new_tensor(float(len(told))),
        }

    def finish(self, sums: Sums, rotation: Rotation | None) -> Mapping[str, Tensor]:
        """Every feature is scaled to its deviation before small weights are preferred."""
        products, told = sums["products"], sums["told"]
        count = products[:, :1, :1]
        mean = products[:, :1] / count
        scale = (products.diagonal(dim1=1, dim2=2)[:, None] / count - mean.square()).clamp_min(
            1e-12
        )
        scale = scale.sqrt()
        scale[..., 0], mean[..., 0] = 1.0, 0.0
        centred = products - mean.transpose(1, 2) @ products[:, :1]
        centred = centred - centred[:, :, :1] @ mean
        goal = told - (mean.transpose(1, 2) @ told[:, :1, None])[..., 0]
        matrix = centred / (scale.transpose(1, 2) @ scale)
        ridge = RIDGE * torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        ridge[0, 0] = 0.0
        matrix = matrix + count * ridge
        weights = torch.linalg.solve(matrix, goal / scale[:, 0]) / scale[:, 0]
        offset = weights[:, 0] - (weights * mean[:, 0]).sum(-1)
        first, last = 1 + FACTS, 1 + FACTS + len(sums["of_key"])
        of_facts, of_key, of_value = (
            weights[:, a:b] for a, b in ((1, first), (first, last), (last, None))
        )
        parts = {"of_facts": of_facts, "of_key": of_key, "of_value": of_value, "offset": offset}
        parts["levels"] = sums["levels"] / sums["prompts"]
        return {name: part.float() for name, part in parts.items()}


GATHERINGS["recommended"] = SecondReading()


@cache
def say_once() -> None:
    """That a profile would do better."""
    logging.getLogger("foveate").info(
        "recommended has no profile: unless one is installed for the model, it ranks pairs by how "
        "their keys differ and how large their values are. 'foveate calibrate recommended --model "
        "MODEL' makes one in minutes, and "
        "kvzip needs none, at the price of a second prefill."
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
        heads: What each head keeps: by the prompt, or by the profile.

    Raises:
        InvalidParameter: heads=by_profile without a profile.

    Defaults:
        what was measured, in [which_method.md](which_method.md)
    """
    split: Budget = OneRanking(amount=budget)
    if heads == "by_profile":
        if profile is None:
            raise InvalidParameter("heads='by_profile' needs a profile: give profile=FILE.")
        split = HeadLevels(amount=budget, profile=profile, of="recommended")
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
