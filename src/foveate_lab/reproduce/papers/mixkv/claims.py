"""What MixKV's text claims beside its tables: the gain at budget 64, and what its weights cost."""

from __future__ import annotations

from foveate_lab.reproduce.experiment import Experiment, Open
from foveate_lab.reproduce.papers.mixkv.ablations import COST_OPEN, WEIGHTS
from foveate_lab.reproduce.papers.mixkv.shared import (
    ADAKV,
    FULL,
    IMAGE_SETS,
    IMAGES,
    METRICS_OPEN,
    MIX,
    PAPER,
    PYRAMIDKV,
    SCORES,
    SNAPKV,
    SPARSEMM,
    SPARSEMM_OPEN,
)
from foveate_lab.reproduce.trials import Arm, Gains, Latency, paired

EXPERIMENTS = (
    Experiment(
        id="mixkv:text-gain",
        of=PAPER,
        where="abstract (L27-29)",
        shows='MixKV at budget 64: "improves baseline methods by an average of 5.1%".',
        models=("llava-next-mistral-7b", "internvl3-8b", "qwen2-vl-7b"),
        data=IMAGES,
        metric="relative gain over the base method, %",
        budgets="64",
        trial=Gains(
            title="Gain by MixKV at budget 64, %",
            arms=paired(SNAPKV, PYRAMIDKV, ADAKV, SPARSEMM[:2]),
            across=IMAGE_SETS,
            budgets=("64",),
            printed_in="mixkv_table1",
            claimed=5.1,
            source="29",
        ),
        open_=(
            METRICS_OPEN,
            SPARSEMM_OPEN,
            Open(
                "how 5.1% was averaged",
                "the mean of the relative gains of 11 pairs on five sets; those of Table 1's own "
                "figures have a mean of 4.7%",
            ),
        ),
        calibrations=SCORES,
    ),
    Experiment(
        id="mixkv:text-weights-cost",
        of=PAPER,
        where="section 4.3, text (L476-477)",
        shows='Weights of heads, offline and online: "the inference costs remain comparable".',
        models=("qwen2-vl-7b",),
        data="32,000 tokens; OCRBench for the offline weights",
        metric="total latency, peak memory",
        budgets="64",
        trial=Latency(
            title="Weights of heads measured beforehand, or in every prompt",
            arms=(
                FULL,
                SNAPKV[0],
                Arm(
                    name="offline head weights",
                    spec=f"mixkv:budget={{B}},mix=headwise,profile={{weights}},{MIX}",
                ),
                Arm(name="online head weights", spec=f"mixkv:budget={{B}},mix=headwise,{MIX}"),
            ),
            budgets=("64",),
            tokens=32_000,
        ),
        open_=(
            *COST_OPEN,
            Open("which model, base method and length it was measured with", "those of Figure 4"),
            Open("the costs", "no number of them is in the text: measured ones stand alone"),
        ),
        calibrations=WEIGHTS,
    ),
)
