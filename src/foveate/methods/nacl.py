"""NACL: what the prompt's last tokens attend to, and some others by lot.

Departs from the authors' code: the lot follows from ``seed`` and is drawn per KV head with the
scores of its own query heads, where the release takes those of the first ones.
"""

from __future__ import annotations

from foveate.core.amount import Amount
from foveate.core.method import Paper, method
from foveate.core.parameters import Count, Recent, Seed, Share, Window
from foveate.core.policy import Policy
from foveate.stages.budget import Uniform
from foveate.stages.score import ProxyAttention
from foveate.stages.score.groups import Reduction
from foveate.stages.select import TopAndDrawn


@method(
    Paper(
        title="NACL: A General and Effective KV Cache Eviction Framework for LLMs at Inference "
        "Time",
        authors=("Chen, Yilong", "Wang, Guoxia", "Shang, Junyuan", "Cui, Shiyao",
                 "Zhang, Zhenyu", "Liu, Tingwen", "Wang, Shuohuan", "Sun, Yu", "Yu, Dianhai",
                 "Wu, Hua"),
        year=2024,
        venue="Association for Computational Linguistics",
        key="chen2024nacl",
        arxiv="2408.03675",
        code="https://github.com/PaddlePaddle/Research",
    ),
)  # fmt: skip
def nacl(
    *,
    budget: Amount,
    proxies: Window = 0.05,
    drawn: Share = 0.37,
    recent: Recent = 0.05,
    sinks: Count = 4,
    seed: Seed = 0,
    group: Reduction = "mean",
) -> Policy:
    """Keeps what the last tokens attend to, and a share of the others by lot."""
    return Policy(
        score=ProxyAttention(proxies=proxies, group=group),
        budget=Uniform(amount=budget),
        select=TopAndDrawn(drawn=drawn, seed=seed, recent=recent, sinks=sinks),
    )
