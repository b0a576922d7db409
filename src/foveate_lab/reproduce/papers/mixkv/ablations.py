"""What MixKV is made of, table 4, and what it costs, figures 4 and 6."""

from __future__ import annotations

from foveate_lab.reproduce.calibrations import CalibrationRun
from foveate_lab.reproduce.experiment import Experiment, Open
from foveate_lab.reproduce.papers.mixkv.shared import (
    ADAKV,
    FULL,
    IMAGE_SETS,
    IMAGES,
    MEASURED,
    METRICS,
    METRICS_OPEN,
    MIX,
    PAPER,
    PYRAMIDKV,
    REDUNDANCIES,
    SCORES,
    SNAPKV,
    SPARSEMM_OPEN,
)
from foveate_lab.reproduce.plots import Plot
from foveate_lab.reproduce.table import MEMBERS_DOWN
from foveate_lab.reproduce.trials import Arm, GridTrial, Latency


def _ablated(mixes: dict[str, str], last: str) -> tuple[Arm, ...]:
    """What is ablated, over each of three base methods, one of them with two tables of scores.
    {M} is where MixKV's arguments go; the ``last`` of them is compared with the first.
    """
    bases = {
        "SnapKV": f"mixkv:budget={{B}},{{M}},{MIX}",
        "AdaKV": f"mixkv({{M}},{MIX})+adakv:budget={{B}},floor=0.2,normalised=true",
        "SparseMM": f"mixkv({{M}},{MIX})+sparsemm(profile={{published_sparsemm}}):budget={{B}}",
        f"SparseMM{MEASURED}": f"mixkv({{M}},{MIX})+sparsemm(profile={{sparsemm}}):budget={{B}}",
    }
    return tuple(
        Arm(
            name=f"{base}, {name}",
            spec=spec.replace("{M}", mix),
            over=f"{base}, extrinsic" if name == last else "",
        )
        for name, mix in mixes.items()
        for base, spec in bases.items()
    )


EXTRINSIC = {"extrinsic": "mix=importance,intrinsic=none"}
IMPORTANCE = _ablated(
    {
        **EXTRINSIC,
        "extrinsic + KNorm": "mix=importance,intrinsic=key",
        "extrinsic + VNorm": "mix=importance,intrinsic=value",
    },
    last="extrinsic + VNorm",
)
MIXING = _ablated(
    {
        **EXTRINSIC,
        "diversity": "mix=diversity",
        "importance + diversity": "mix=sum",
        "offline head weights": "mix=headwise,profile={weights}",
        "online head weights": "mix=headwise",
    },
    last="online head weights",
)
PUBLISHED = Arm(
    name="SnapKV, offline head weights as published",
    spec=f"mixkv:budget={{B}},mix=headwise,profile={{published_weights}},{MIX}",
    models=("qwen2-vl-7b",),
)
WEIGHTS = {
    "weights": CalibrationRun(method="mixkv:budget=50%,window=0.25", task="ocrbench", samples=100)
}
ABLATED = ("llava-next-mistral-7b", "qwen2-vl-7b")
COST_OPEN = (
    Open("the prompt", "prose, whose middle half counts as visual"),
    Open("batch, answer length and warm-up", "one prompt, 64 tokens, one round before three"),
)
NO_BARS = Open("what the bars are", "no number of them is in the text: measured ones stand alone")


BARS = Plot("bars", columns=("total s", "peak GiB"))


def _latency(title: str, arms: tuple[Arm, ...], budgets: tuple[str, ...]) -> Latency:
    return Latency(title=title, arms=arms, budgets=budgets, tokens=32_000, plot=BARS)


EXPERIMENTS = (
    Experiment(
        id="mixkv:table4-importance",
        of=PAPER,
        where="Table 4, importance",
        shows="Extrinsic importance alone, and with the norm of keys or of values.",
        models=ABLATED,
        data=IMAGES,
        metric=METRICS,
        budgets="64",
        trial=GridTrial(
            title="Table 4: what importance is made of",
            arms=IMPORTANCE,
            across=IMAGE_SETS,
            budgets=("64",),
            figures="mixkv_table4-importance",
            layout=MEMBERS_DOWN,
        ),
        open_=(
            METRICS_OPEN,
            SPARSEMM_OPEN,
            Open("sign and scale of the norm of keys", "minus the norm, scaled as that of values"),
        ),
        calibrations=SCORES,
    ),
    Experiment(
        id="mixkv:table4-mixing",
        of=PAPER,
        where="Table 4, mixing",
        shows="Diversity alone, added, and with weights of heads, offline or online.",
        models=ABLATED,
        data=IMAGES,
        metric=METRICS,
        budgets="64",
        trial=GridTrial(
            title="Table 4: how importance and diversity are mixed",
            arms=(*MIXING, PUBLISHED),
            across=IMAGE_SETS,
            budgets=("64",),
            figures="mixkv_table4-mixing",
            layout=MEMBERS_DOWN,
        ),
        open_=(
            METRICS_OPEN,
            SPARSEMM_OPEN,
            Open("samples of the offline weights", "100 of OCRBench"),
            Open(
                "which model the published redundancies are of",
                "of Qwen2-VL-7B: 28 layers with 4 KV heads, as it and Qwen2.5-VL-7B have",
            ),
            Open("LLaVA-NeXT's lines with weights, not in the text", "nothing to compare with"),
        ),
        calibrations={
            **SCORES,
            **REDUNDANCIES,
            **WEIGHTS,
        },
    ),
    Experiment(
        id="mixkv:fig4",
        of=PAPER,
        where="Figure 4",
        shows='Latency and peak memory. The text: MixKV adds "less than 1%" to the latency (L486).',
        models=("qwen2-vl-7b",),
        data="32,000 tokens (L442)",
        metric="total latency, peak memory",
        budgets="64",
        trial=_latency(
            "Figure 4: a prompt of 32,000 tokens",
            (FULL, *SNAPKV, *PYRAMIDKV, *ADAKV),
            ("64",),
        ),
        open_=(*COST_OPEN, NO_BARS),
    ),
    Experiment(
        id="mixkv:fig6",
        of=PAPER,
        where="Figure 6",
        shows='As Figure 4, larger budgets. The text: "less than 1%" latency, no measurable rise '
        "in peak memory (L1002-1003).",
        models=("qwen2-vl-7b",),
        data="32,000 tokens",
        metric="total latency, peak memory",
        budgets="128, 256",
        trial=_latency(
            "Figure 6: a prompt of 32,000 tokens", (FULL, *SNAPKV, *ADAKV), ("128", "256")
        ),
        open_=(*COST_OPEN, Open("model and length", "those of Figure 4"), NO_BARS),
    ),
)
