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

from typing import Literal

from foveate.core.amount import Amount
from foveate.core.method import Paper, method
from foveate.core.parameters import Count, Positive, Share
from foveate.core.policy import Policy
from foveate.stages.budget import OneRanking, Uniform
from foveate.stages.score import Reconstruction
from foveate.stages.select import TopK

Heads = Literal["ranked", "even"]


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
    adds=("score", "budget", "select", "when"),
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
