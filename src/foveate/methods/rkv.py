"""R-KV: what the newest tokens attend to and what no later token repeats, all along an answer.

Made for long chains of thought, which say the same thing many times. A token's score is its
importance times `mix_lambda`, less its redundancy times (1 - `mix_lambda`); the last `window`
tokens stay. The cache is compressed after the prompt, and whenever `every` tokens (the paper's
buffer) have come since.

Departs from the authors' code in: the order of what is kept, which stays that of the text (the
release holds pairs in the order of their scores, so that from the second time on "the most recent"
is the one of the lowest score); a token without a similar one, which leaves all cosines as they are
(the release zeroes its cosine with the first token of the cache); and the default of `mix_lambda`,
the paper's 0.1 (0.07 in the release).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.layer import Layer, Scores
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Kernel, Positive, Share, ShareBelow, Window
from foveate.stages import OverBudget, TopK, Uniform
from foveate.stages.recent import is_recent, most_recent
from foveate.stages.score.bases import Wrapper
from foveate.stages.score.rows import blocks
from foveate.stages.score.window import window_of


@stage("highest_logits", head_by_head=True)
class HighestLogits:
    """Mean over the last ``window`` queries of the softmax over the tokens before them, of the
    highest logit among the query heads of a KV head; then the maximum over ``kernel`` slots. The
    window itself scores zero: selections protect it. In float32.

    Source: R-KV (arXiv:2505.24133), section 3.2 (importance), and the release.
    """

    window: Window = 8
    kernel: Kernel = 7

    def queries(self, tokens: int) -> int:
        return most_recent(self.window, tokens)

    def __call__(self, layer: Layer) -> Scores:
        observing = window_of(layer.slots, self.window)
        w = observing.shape[1]
        outside = layer.valid & ~is_recent(layer.slots, self.window)
        hidden = ~(layer.slots.visible(w) & outside[:, :, None] & observing[:, None, :, None])
        logits = _highest(layer.q[:, :, -w:], layer.k) * layer.scale
        paid = logits.masked_fill(hidden, -torch.inf).softmax(-1).masked_fill(hidden, 0.0)
        mean = paid.sum(2) / observing.sum(-1)[:, None, None]
        pooled = F.max_pool1d(mean, self.kernel, stride=1, padding=self.kernel // 2)
        return Scores(pooled.masked_fill(~outside, 0.0))


def _highest(q: Float[Tensor, "b hq w d"], k: Float[Tensor, "b h n d"]) -> Float[Tensor, "b h w n"]:
    """The products of queries and keys, the highest of the query heads that share a KV head."""
    b, h = k.shape[:2]
    of_heads = q.float().view(b, h, -1, *q.shape[2:]).unbind(2)
    return torch.stack([one @ k.float().mT for one in of_heads]).amax(0)


def redundancy(
    k: Float[Tensor, "b h n d"], valid: Bool[Tensor, "b h n"], threshold: float, newest: int
) -> Float[Tensor, "b h n"]:
    """The softmax over the tokens of each one's mean cosine with the others, in which a token that
    is among the ``newest`` last that resemble another (a cosine above ``threshold``) counts as not
    like that one: of similar tokens, the latest are not redundant.
    """
    unit = F.normalize(k.float(), dim=-1).masked_fill(~valid[..., None], 0.0)
    total = (unit @ unit.sum(2, keepdim=True).mT).squeeze(-1) - unit.square().sum(-1)
    total = total - repeated_by(unit, valid, threshold, newest)
    mean = total / valid.sum(-1, keepdim=True).clamp_min(1)
    return mean.masked_fill(~valid, -torch.inf).softmax(-1).masked_fill(~valid, 0.0)


def repeated_by(
    unit: Float[Tensor, "b h n d"], valid: Bool[Tensor, "b h n"], threshold: float, newest: int
) -> Float[Tensor, "b h n"]:
    """The sum of each token's cosines with those that it is one of the ``newest`` to resemble.

    From the last tokens on, so that a token whose newest are found is not compared any further.
    """
    missing, repeated = valid * newest, torch.zeros_like(unit[..., 0])
    for some in reversed([*blocks(unit.shape[2])]):
        rest = _of_any_head(missing > 0)
        cosine = unit[:, :, rest] @ unit[:, :, some].mT
        itself = ((rest >= some.start) & (rest < some.stop)).nonzero()[:, 0]
        cosine[:, :, itself, rest[itself] - some.start] = -1.0
        alike = _of_any_head((cosine > threshold).any(-1))
        rest, cosine = rest[alike], cosine[:, :, alike]
        similar = cosine > threshold
        later = similar.flip(-1).cumsum(-1).flip(-1)
        counted = similar & (later <= missing[:, :, rest, None])
        repeated[:, :, some] = cosine.masked_fill_(~counted, 0.0).sum(2)
        missing[:, :, rest] -= counted.sum(-1)
    return repeated


def _of_any_head(which: Bool[Tensor, "b h n"]) -> Int[Tensor, "some"]:
    """The slots for which it is true in some head of some row."""
    return which.flatten(0, 1).any(0).nonzero()[:, 0]


@stage("less_redundant", head_by_head=True)
class LessRedundant(Wrapper):
    """``mix_lambda`` times the score that it wraps, less (1 - ``mix_lambda``) times the redundancy
    of each key among all that are held; the part "importance" is the score without it. The last
    tokens count as later ones that may repeat earlier ones.

    Its time grows with the square of the tokens held: it is meant for caches within a budget.

    Source: R-KV (arXiv:2505.24133), sections 3.3 and 3.4.
    """

    mix_lambda: Share = 0.1
    threshold: ShareBelow = 0.5
    newest: Positive = 1

    def __call__(self, layer: Layer) -> Scores:
        scores = self.of(layer)
        importance = scores.values.float()
        repeated = redundancy(layer.k, layer.valid, self.threshold, self.newest)
        values = self.mix_lambda * importance - (1 - self.mix_lambda) * repeated
        return scores._replace(values=values, parts={"importance": importance, **scores.parts})


@method("cai2025rkv", adds=("score", "when"), wraps=True)
def rkv(
    *,
    budget: Amount,
    window: Window = 8,
    kernel: Kernel = 7,
    mix_lambda: Share = 0.1,
    threshold: ShareBelow = 0.5,
    newest: Positive = 1,
    every: Positive = 128,
) -> Policy:
    """Keeps what the newest tokens attend to and no later token repeats, while it answers.

    Args:
        window: The last tokens, whose queries vote and which are always kept.
        mix_lambda: Weight of importance beside redundancy.
        threshold: The cosine above which two keys are alike.
        newest: How many of the last tokens alike count as not repeated.

    Defaults:
        README of the release; its class has `mix_lambda` 0.07
    """
    return Policy(
        score=LessRedundant(
            of=HighestLogits(window=window, kernel=kernel),
            mix_lambda=mix_lambda,
            threshold=threshold,
            newest=newest,
        ),
        budget=Uniform(amount=budget),
        select=TopK(recent=window),
        when=OverBudget(every=every),
    )
