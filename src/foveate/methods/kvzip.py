"""KVzip: what the model needs to say its own prompt again.

The prompt is read once more, after its cache, and a pair counts by the most attention that any
token of the second reading pays to it: no question has to be known. One ranking over all heads and
layers says what each head keeps. Images are read again from their embeddings, without the vision
tower. The price is a second prefill, over twice the tokens.

Departs from the authors' code in: no instruction ("Repeat the previous context:") stands before the
second reading, which for image embeddings changes little and needs a tokenizer; pieces of a long
prompt follow one another without the last words of the piece before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from foveate.core.amount import Amount
from foveate.core.layer import Layer, Scores
from foveate.core.method import Paper, method
from foveate.core.parameters import Count, Positive, Share
from foveate.core.policy import Policy
from foveate.core.spec import stage
from foveate.stages.budget import OneRanking, Uniform
from foveate.stages.score.rows import rows
from foveate.stages.select import TopK

Heads = Literal["ranked", "even"]
NOTED = "reconstruction"


@stage("reconstruction")
@dataclass(frozen=True, kw_only=True)
class Reconstruction:
    """The most attention that a token of the second reading pays to each slot, over its query heads
    and tokens, of a softmax over the prompt and the piece itself; at most ``chunk`` tokens are read
    at a time.

    Source: KVzip (arXiv:2505.23416), section 3.2 and 3.3, eq. 2.
    """

    head_by_head: ClassVar[bool] = True
    chunk: Positive = 2048

    def queries(self, tokens: int) -> int:
        return 0

    def again(self, layer: Layer) -> Mapping[str, Tensor]:
        """The maxima over one more piece."""
        prompt = layer.k.shape[2] - layer.q.shape[2]
        most = reduce(torch.maximum, (_most(paid, prompt) for _, paid in rows(layer)))
        if NOTED in layer.state:
            most = torch.maximum(most, layer.state[NOTED])
        return {NOTED: most}

    def __call__(self, layer: Layer) -> Scores:
        return Scores(layer.state[NOTED])


def _most(paid: Float[Tensor, "b h g r s"], prompt: int) -> Float[Tensor, "b h n"]:
    return paid[..., :prompt].amax((2, 3))


@method(
    Paper(
        title="KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction",
        authors=(
            "Kim, Jang-Hyun",
            "Kim, Jinuk",
            "Kwon, Sangwoo",
            "Lee, Jae W.",
            "Yun, Sangdoo",
            "Song, Hyun Oh",
        ),
        year=2025,
        venue="Advances in Neural Information Processing Systems",
        key="kim2025kvzip",
        arxiv="2505.23416",
        code="https://github.com/snu-mllab/KVzip",
    ),
    adds=("score", "budget", "select"),
)
def kvzip(
    *,
    budget: Amount,
    heads: Heads = "ranked",
    floor: Share = 0.0,
    sinks: Count = 1,
    recent: Count = 0,
    chunk: Positive = 2048,
) -> Policy:
    """Keeps what the model attends to as it reads its prompt a second time; needs no question.

    The first ``sinks`` tokens stay in every head: one that keeps few others would otherwise give
    these all of its attention.
    ``heads`` "ranked" has one ranking over all heads and layers, of which a head has at least
    ``floor`` of an even share; "even" keeps as many in every head.
    """
    ranked = OneRanking(amount=budget, floor=floor)
    return Policy(
        score=Reconstruction(chunk=chunk),
        budget=ranked if heads == "ranked" else Uniform(amount=budget),
        select=TopK(sinks=sinks, recent=recent),
    )
