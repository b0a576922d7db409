"""R-KV: tokens that the newest tokens attend to and that no later token repeats.

It was designed for long chains of thought, which repeat themselves many times. A token's score is
its importance times `mix_lambda`, less its redundancy times (1 - `mix_lambda`); the last `window`
tokens stay. The cache is compressed after the prompt, and whenever `every` tokens (the paper's
buffer) have been added.

Differences from the authors' code:

* Kept pairs stay in the order of the text. The release stores them in the order of their scores, so
  that from the second time on "the most recent" is the one of the lowest score.
* A token without a similar one leaves all cosines as they are. The release zeroes its cosine with
  the first token of the cache.
* `mix_lambda` defaults to the paper's 0.1 (0.07 in the release).
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
from foveate.stages.score.attention_rows import blocks
from foveate.stages.score.bases import Wrapper
from foveate.stages.score.window import window_of


@stage("highest_logits", head_by_head=True)
class HighestLogits:
    """Mean over the last ``window`` queries of the softmax of the highest logit among query heads.

    The softmax is over the tokens before the window, in float32; the maximum over ``kernel`` slots
    is then taken. The window itself scores zero: selections protect it.

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
    """Return the highest product of key and query among the query heads that share a KV head."""
    b, h = k.shape[:2]
    of_heads = q.float().view(b, h, -1, *q.shape[2:]).unbind(2)
    return torch.stack([head_q @ k.float().mT for head_q in of_heads]).amax(0)


def redundancy(
    k: Float[Tensor, "b h n d"], valid: Bool[Tensor, "b h n"], threshold: float, newest: int
) -> Float[Tensor, "b h n"]:
    """Return the softmax over tokens of each one's mean cosine with the others.

    Of similar tokens the latest are not redundant: a token's cosine with another one does not count
    if it is among the ``newest`` last tokens that resemble the other (a cosine above
    ``threshold``).
    """
    unit = F.normalize(k.float(), dim=-1).masked_fill(~valid[..., None], 0.0)
    total = (unit @ unit.sum(2, keepdim=True).mT).squeeze(-1) - unit.square().sum(-1)
    total = total - repeated_by(unit, valid, threshold, newest)
    mean = total / valid.sum(-1, keepdim=True).clamp_min(1)
    return mean.masked_fill(~valid, -torch.inf).softmax(-1).masked_fill(~valid, 0.0)


def repeated_by(
    unit: Float[Tensor, "b h n d"], valid: Bool[Tensor, "b h n"], threshold: float, newest: int
) -> Float[Tensor, "b h n"]:
    """Sum each token's cosines with those that it is one of the ``newest`` to resemble.

    It goes from the last tokens on, so that a token whose newest ones are found is not compared any
    further.
    """
    missing, repeated = valid * newest, torch.zeros_like(unit[..., 0])
    for block in reversed([*blocks(unit.shape[2])]):
        rest = _of_any_head(missing > 0)
        cosine = unit[:, :, rest] @ unit[:, :, block].mT
        itself = ((rest >= block.start) & (rest < block.stop)).nonzero()[:, 0]
        cosine[:, :, itself, rest[itself] - block.start] = -1.0
        alike = _of_any_head((cosine > threshold).any(-1))
        rest, cosine = rest[alike], cosine[:, :, alike]
        similar = cosine > threshold
        later = similar.flip(-1).cumsum(-1).flip(-1)
        counted = similar & (later <= missing[:, :, rest, None])
        repeated[:, :, block] = cosine.masked_fill_(~counted, 0.0).sum(2)
        missing[:, :, rest] -= counted.sum(-1)
    return repeated


def _of_any_head(marked: Bool[Tensor, "b h n"]) -> Int[Tensor, "some"]:
    """Return the slots that are marked in some head of some row."""
    return marked.flatten(0, 1).any(0).nonzero()[:, 0]


@stage("less_redundant", head_by_head=True)
class LessRedundant(Wrapper):
    """Another score, less the redundancy of each key among all stored ones.

    It is ``mix_lambda`` times the wrapped score, less (1 - ``mix_lambda``) times the redundancy.
    The part "importance" is the wrapped score. The last tokens count as later ones that may repeat
    earlier ones.

    Time is quadratic in the number of stored tokens: it is meant for caches within a budget.

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
    """Tokens that the newest tokens attend to and no later token repeats, while answering, too.

    Score: mix_lambda * importance - (1 - mix_lambda) * redundancy, sections 3.2 to 3.4.

    Args:
        window: Last tokens, whose queries vote and which are always kept.
        mix_lambda: Weight of importance relative to redundancy, e.g. 0.1.
        threshold: Cosine above which two keys are alike.
        newest: Number of last similar tokens that count as not repeated.

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
