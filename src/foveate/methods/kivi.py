"""KIVI: everything is kept, in a few bits: keys per channel, values per token.

On its own the whole prompt; added to another method (``snapkv+kivi(bits=4):budget=20%``), what
that keeps. Departs from the authors' code in three ways: what is left over of a head's last group
of keys makes a shorter group, where the release keeps it in full precision; while decoding, values
leave the residual a group at a time, as keys do; and equal numbers of a group are exact, where the
release divides by zero.
"""

from __future__ import annotations

from foveate.core.amount import Amount
from foveate.core.method import Paper, method
from foveate.core.parameters import Count, Positive
from foveate.core.policy import Policy
from foveate.stages.budget import Uniform
from foveate.stages.score import Recency
from foveate.stages.select import TopK
from foveate.stages.store import Kivi
from foveate.stages.store.kivi import Bits


@method(
    Paper(
        title="KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache",
        authors=(
            "Liu, Zirui",
            "Yuan, Jiayi",
            "Jin, Hongye",
            "Zhong, Shaochen",
            "Xu, Zhaozhuo",
            "Braverman, Vladimir",
            "Chen, Beidi",
            "Hu, Xia",
        ),
        year=2024,
        venue="International Conference on Machine Learning",
        key="liu2024kivi",
        arxiv="2402.02750",
        code="https://github.com/jy-yuan/KIVI",
    ),
    adds=("store",),
)
def kivi(*, bits: Bits = 2, group: Positive = 32, residual: Count = 128) -> Policy:
    """Holds all but the last pairs in 2, 4 or 8 bits; adds to any method.

    Args:
        bits: Bits of each number that is held.
        group: Numbers that share a scale.
        residual: The newest pairs, which are held as they are.

    Defaults:
        release; 2 bits: the paper's main setting
    """
    return Policy(
        score=Recency(),
        budget=Uniform(amount=Amount.of(1.0)),
        select=TopK(),
        store=Kivi(bits=bits, group=group, residual=residual),
    )
