"""The methods compared: figure 2, and tables 1 to 3."""

from __future__ import annotations

from foveate_lab.reproduce.experiment import UNREADABLE, Experiment, Open
from foveate_lab.reproduce.papers.prefixkv.shared import (
    ALL_OF_MM_VET,
    BASELINES,
    BOTH,
    BUDGETS,
    CONFIGURATIONS,
    ESTIMATED,
    FULL,
    MM_VET,
    ONLINE,
    OURS,
    PAPER,
    PUBLIC,
    PUBLISHED,
    PYRAMID,
    SAMPLED,
    SEVEN,
    WEIGHTS,
)
from foveate_lab.reproduce.trials import Arm, Batch, Column, GridTrial, ThroughputTrial, ViewTrial


def _both(task: str) -> tuple[Column, ...]:
    return tuple(Column(name=value, tasks=(task,), value=value) for value in ("PPL", "ROUGE"))


EXPERIMENTS = (
    Experiment(
        id="prefixkv:fig2",
        of=PAPER,
        where="Figure 2",
        shows="The share of a layer's attention that its most important tokens hold.",
        models=SEVEN,
        data=MM_VET,
        metric="cumulative priority, Gini coefficient",
        budgets="none",
        trial=ViewTrial(
            each=("mm_vet",),
            charts=("How concentrated attention is", "Gini coefficient of each layer"),
            samples=1,
        ),
        open_=(
            Open("model, sample and budget", "LLaVA-1.5-7B, MM-Vet's first, no line of a budget"),
            Open("whether the Gini coefficient is the area or twice it", "twice, as usual"),
            UNREADABLE,
        ),
    ),
    Experiment(
        id="prefixkv:table1",
        of=PAPER,
        where="Table 1",
        shows="Five methods on detailed descriptions.",
        models=BOTH,
        data="LLaVA-Description, 1,000 samples (L143)",
        metric="perplexity, ROUGE-L to the full cache's answer",
        budgets=", ".join(BUDGETS),
        trial=GridTrial(
            title="Table 1: LLaVA-Description",
            arms=(*BASELINES, PYRAMID, OURS, PUBLISHED),
            across=_both("llava_description"),
            budgets=BUDGETS,
            figures="prefixkv_table1",
            samples=1000,
        ),
        departs=(SAMPLED,),
        cannot=f"{WEIGHTS}. It runs with the hub's LLaVA-1.5, which was trained on these samples; "
        "the linked ones are named with --model.",
        calibrations={**ESTIMATED, **CONFIGURATIONS},
    ),
    Experiment(
        id="prefixkv:table2",
        of=PAPER,
        where="Table 2",
        shows="Five methods on open questions.",
        models=BOTH,
        data=MM_VET,
        metric="perplexity, ROUGE-L to the full cache's answer",
        budgets=", ".join(BUDGETS),
        trial=GridTrial(
            title="Table 2: MM-Vet",
            arms=(*BASELINES, PYRAMID, OURS, PUBLISHED),
            across=_both("mm_vet"),
            budgets=BUDGETS,
            figures="prefixkv_table2",
            samples=ALL_OF_MM_VET,
        ),
        departs=(PUBLIC, SAMPLED),
        calibrations={**ESTIMATED, **CONFIGURATIONS},
    ),
    Experiment(
        id="prefixkv:table3",
        of=PAPER,
        where="Table 3",
        shows="Time of batches at full load.",
        models=("llava-1.5-13b", "llava-1.5-7b"),
        data="prompts of 1,024 and 624 tokens, 512 and 256 new ones (L166)",
        metric="seconds, tokens a second",
        budgets="20%, 40%, 60%, 80%",
        trial=ThroughputTrial(
            title="Table 3: batches at full load",
            batches=(
                Batch(
                    name="1024 + 512, batch 8",
                    model="llava-1.5-13b",
                    tokens=1024,
                    new=512,
                    rows=8,
                ),
                Batch(
                    name="624 + 256, batch 16",
                    model="llava-1.5-13b",
                    tokens=624,
                    new=256,
                    rows=16,
                ),
                Batch(
                    name="1024 + 512, batch 16",
                    model="llava-1.5-7b",
                    tokens=1024,
                    new=512,
                    rows=16,
                ),
                Batch(
                    name="624 + 256, batch 48",
                    model="llava-1.5-7b",
                    tokens=624,
                    new=256,
                    rows=48,
                ),
            ),
            arms=(FULL, Arm(name="PrefixKV", spec=ONLINE)),
            budgets=("20%", "40%", "60%", "80%"),
            figures="prefixkv_table3",
        ),
        open_=(
            Open("A100 of 40 or 80 GB, number type and attention backend", "yours"),
            Open("whether the time has the prefill in it", "of the new tokens alone"),
            Open("the full cache's tokens a second, lost in the table", "nothing to compare with"),
        ),
    ),
)
