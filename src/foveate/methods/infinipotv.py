"""InfiniPot-V: the cache of a long video stays within its budget while the video is read.

Text comes first; of the places that it leaves, a share (``temporal``) goes to the newest frames and
to what does not repeat in them (TaR), the rest to the tokens whose values have the highest norms
(VaN). Read the prompt in chunks (``generate(..., prefill_chunk_size=...)``, or ``session.expect``
and the model itself): whenever the heads hold ``every`` pairs more than the budget, what they hold
is compressed.

Departs from the authors' code in two ways: a place in a frame is the one that the token had in the
video, where the release counts through what is left of earlier frames; and, as in the released
scripts, the paper's pooling of norms (section 4.2) is left out.
"""

from __future__ import annotations

from foveate.core.amount import Amount
from foveate.core.method import Paper, method
from foveate.core.parameters import Positive, Share, ShareBetween
from foveate.core.policy import Policy
from foveate.stages.budget import Uniform
from foveate.stages.score import Novelty, TextPrior, ValueNorm
from foveate.stages.select import NovelFirst
from foveate.stages.when import OverBudget


@method(
    Paper(
        title="InfiniPot-V: Memory-Constrained KV Cache Compression for Streaming Video "
        "Understanding",
        authors=("Kim, Minsoo", "Shim, Kyuhong", "Choi, Jungwook", "Chang, Simyung"),
        year=2025,
        venue="Advances in Neural Information Processing Systems",
        key="kim2025infinipotv",
        arxiv="2506.15745",
        code="https://github.com/aiha-lab/InfiniPot-V",
    ),
    adds=("score", "select", "when"),
)  # fmt: skip
def infinipotv(
    *,
    budget: Amount,
    frame: Positive | None = None,
    temporal: Share = 0.5,
    newest: ShareBetween = 0.25,
    every: Positive = 256,
) -> Policy:
    """Keeps text, new frames, what does not repeat in them, and large values, while it reads.

    ``frame`` is the number of visual tokens of a frame of a video, or null if frames are images.
    """
    return Policy(
        score=Novelty(of=TextPrior(of=ValueNorm()), frame=frame, newest=newest),
        budget=Uniform(amount=budget),
        select=NovelFirst(share=temporal),
        when=OverBudget(every=every, reading=True, answering=False),
    )
