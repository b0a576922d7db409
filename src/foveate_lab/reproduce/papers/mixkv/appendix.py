"""The appendix: figure 5, and tables 5 to 7."""

from __future__ import annotations

from foveate_lab.reproduce.calibrations import CalibrationRun
from foveate_lab.reproduce.experiment import UNREADABLE, Experiment, Open
from foveate_lab.reproduce.papers.longbench import LONGBENCH
from foveate_lab.reproduce.papers.mixkv.shared import (
    ADAKV,
    CUT,
    CUT_OPEN,
    FULL,
    IMAGES,
    METRICS,
    METRICS_OPEN,
    MIX,
    PAPER,
    SNAPKV,
    image_table,
)
from foveate_lab.reproduce.probes import Similarity
from foveate_lab.reproduce.table import BUDGET_BLOCKS
from foveate_lab.reproduce.trials import Arm, GridTrial, Probe, columns

QA = {name: LONGBENCH[name] for name in list(LONGBENCH)[:6]}
LOOGLE = {
    name: f"loogle_longdep_qa(kind={kind},metric=f1,chat=true,longest={longest})"
    for name, kind, longest in (
        ("Doc.QA", "comprehension_and_reasoning", 64),
        ("Info. Retrieval", "multiple_information_retrieval", 64),
        ("Timeline", "timeline_reorder", 32),
        ("Computation", "computation", 32),
    )
}
HEADKV = (
    FULL,
    Arm(name="HeadKV", spec=f"headkv:budget={{B}},profile={{headkv}},{MIX}"),
    Arm(
        name="HeadKV + MixKV",
        spec=f"mixkv({MIX})+headkv(profile={{headkv}}):budget={{B}}",
        over="HeadKV",
    ),
)
HEAD_SCORES = {"headkv": CalibrationRun(method="headkv", samples=100)}
HEADKV_OPEN = Open(
    "HeadKV's variant, beta and head scores",
    "R2; 1.01; measured on a hundred lines hidden in a text",
)

EXPERIMENTS = (
    Experiment(
        id="mixkv:fig5",
        of=PAPER,
        where="Figure 5",
        shows="How alike keys are, by head, of text and of images with text. The text: some heads "
        '"more than twice" as much, such as layer 29, heads 0 and 1 (L873-874).',
        models=("qwen2-7b", "qwen2-vl-7b"),
        data="100 samples of LongBench, 100 of TextVQA (L867-868)",
        metric="mean cosine similarity by head",
        budgets="none",
        trial=Probe(
            measure=Similarity(),
            given={
                "qwen2-7b": ("longbench_qasper",),
                "qwen2-vl-7b": ("longbench_qasper", "textvqa"),
            },
        ),
        open_=(
            Open("samples, and the set of LongBench", "the first 100, Qasper"),
            Open("layer 29, which models of 28 layers do not have", "all layers are drawn"),
            UNREADABLE,
        ),
    ),
    Experiment(
        id="mixkv:table5-longbench",
        of=PAPER,
        where="Table 5, LongBench",
        shows="MixKV over HeadKV, question answering on long texts.",
        models=("mistral-7b-v0.2",),
        data="LongBench, six sets",
        metric="F1, %",
        budgets="1024, 128",
        trial=GridTrial(
            title="Table 5: LongBench",
            arms=HEADKV,
            across=columns(QA),
            budgets=("1024", "128"),
            figures="mixkv_table5-longbench",
            average="Avg.",
            prompt=CUT,
            layout=BUDGET_BLOCKS,
        ),
        open_=(
            CUT_OPEN,
            HEADKV_OPEN,
        ),
        calibrations=HEAD_SCORES,
    ),
    Experiment(
        id="mixkv:table5-loogle",
        of=PAPER,
        where="Table 5, LooGLE",
        shows="MixKV over HeadKV, questions that need several places of a long text.",
        models=("mistral-7b-v0.2",),
        data="LooGLE, long dependency, four kinds of questions",
        metric="F1, %",
        budgets="1024, 128",
        trial=GridTrial(
            title="Table 5: LooGLE",
            arms=HEADKV,
            across=columns(LOOGLE),
            budgets=("1024", "128"),
            figures="mixkv_table5-loogle",
            average="Avg.",
            prompt=CUT,
            layout=BUDGET_BLOCKS,
        ),
        open_=(
            CUT_OPEN,
            HEADKV_OPEN,
            Open("metric", "F1, with answers of 64 and 32 tokens, as HeadKV's authors"),
            Open("number of questions", "all of each kind"),
        ),
        calibrations=HEAD_SCORES,
    ),
    Experiment(
        id="mixkv:table6",
        of=PAPER,
        where="Table 6",
        shows="A larger dense model.",
        models=("internvl3-38b",),
        data=IMAGES,
        metric=METRICS,
        budgets="128, 64",
        trial=image_table(6, (FULL, *SNAPKV, *ADAKV), ("128", "64")),
        open_=(METRICS_OPEN,),
    ),
    Experiment(
        id="mixkv:table7",
        of=PAPER,
        where="Table 7",
        shows="A mixture of experts.",
        models=("qwen3-vl-30b-a3b",),
        data=IMAGES,
        metric=METRICS,
        budgets="128, 64",
        trial=image_table(7, (FULL, *SNAPKV), ("128", "64")),
        open_=(METRICS_OPEN,),
    ),
)
