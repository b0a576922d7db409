"""CSP: Cross-Self KV Cache Pruning (arXiv:2412.04652)."""

from __future__ import annotations

from dataclasses import replace

from foveate.methods.csp import csp
from foveate_lab.reproduce.experiment import UNREADABLE, Experiment, FactsTable, Open, Reproduced
from foveate_lab.reproduce.papers.csp_arms import (
    CSP,
    OURS,
    READINGS,
    RETRIEVAL,
    SMOOTHED,
    SMOOTHING,
)
from foveate_lab.reproduce.papers.lookm import BASELINES as LOOKM_BASELINES
from foveate_lab.reproduce.papers.lookm import FULL, MERGED, MILEBENCH, some
from foveate_lab.reproduce.plots import Plot
from foveate_lab.reproduce.probes import Smoothing
from foveate_lab.reproduce.table import BUDGETS_LAST
from foveate_lab.reproduce.trials import Arm, Column, GridTrial, Probe, ViewTrial

PAPER = Reproduced(
    method=csp,
    name="CSP",
    open_=(
        Open("the cache size that all methods get in Tables 1 and 3", "20% of the prompt"),
        Open("recent tokens R and window O", "half of the budget, both, as the authors' code"),
        Open("pooling", "none for CSP; kernel 5, average, for SnapKV"),
        Open(
            "how overlapping lists are filled up to the budget",
            "until it is used up; with the 7B also as eqs. 2 to 4 say, and as released",
        ),
        Open(
            "where n-softmax acts: in the selection (Algorithm 1; Fig. 2, L86), or in attention "
            "over what is kept (eqs. 6 and 7, L128-170)",
            "in the selection, n = 1, as the authors' code has it, in every experiment; in the "
            "attention while decoding as well, in lines of their own",
        ),
        Open(
            "padding of batches, which are of 24",
            "none: every prompt is read and pruned alone",
        ),
        Open("prompts, cuts and answer lengths", "MileBench's: 4,096 tokens, 512 for answers"),
        Open("seeds and number type", "greedy decoding; that of the weights"),
    ),
)
SEVEN, THIRTEEN = ("llava-1.5-7b",), ("llava-1.5-13b",)
ALFRED = "milebench_s4(set=ALFRED)"
RATIO_OPEN = Open(
    "the ratio of S-5, which Table 4 leaves out, and what Table 4's ratio is", "0.5; cross's share"
)
BIAS_OPEN = Open(
    'what "bias" is', "how many times R the recent tokens are that are kept, as the authors' code"
)
SETS_OPEN = Open("whether 200 samples are of a set or of a task", "all of each set")
SAMPLE_OPEN = Open("model and samples", "LLaVA-1.5-7B, the first of each set")
NAMED = (
    "milebench_s3(set=CLEVR-Change)",
    "milebench_t4(set=CounterfactualInference)",
    "milebench_s2(set=DocVQA)",
    "milebench_t3(set=EgocentricNavigation)",
)
BATCHES = "batches of one prompt, not of 24"


def _table1(model: tuple[str, ...], size: str) -> Experiment:
    return Experiment(
        id=f"csp:table1-{size}",
        of=PAPER,
        where=f"Table 1, {size.upper()}",
        shows="Eleven ways to hold a cache, MileBench.",
        models=model,
        data="MileBench, 28 of its 29 sets",
        metric="accuracy, ROUGE-L; mean over sets",
        budgets="20%",
        trial=GridTrial(
            title=f"Table 1: LLaVA-1.5-{size}, MileBench",
            arms=(
                FULL,
                *LOOKM_BASELINES,
                *MERGED,
                OURS,
                SMOOTHED,
                *(READINGS if size == "7b" else ()),
            ),
            across=MILEBENCH,
            budgets=("20%",),
            figures=f"csp_table1-{size}",
        ),
        open_=(RATIO_OPEN, BIAS_OPEN, SETS_OPEN),
        departs=(
            BATCHES,
            *(
                ("the paper's full cache is that of the 7B in all columns but T-1 (L226, L238)",)
                if size == "13b"
                else ()
            ),
        ),
    )


def _table3(name: str, model: str) -> Experiment:
    return Experiment(
        id=f"csp:table3-{name}",
        of=PAPER,
        where=f"Table 3, {name}",
        shows="Another model, four columns of MileBench.",
        models=(model,),
        data="MileBench T-2, T-4, S-4, IR",
        metric="mean over sets",
        budgets="20%",
        trial=GridTrial(
            title=f"Table 3: {model}, MileBench",
            arms=(
                FULL,
                *LOOKM_BASELINES,
                Arm(name="LOOK-M", spec=MERGED[-1].spec),
                *(replace(arm, also=RETRIEVAL) for arm in (OURS, SMOOTHED)),
            ),
            across=some("T-2", "T-4", "S-4", "IR"),
            budgets=("20%",),
            figures=f"csp_table3-{name}",
        ),
        open_=(Open("ratios of this model", "0.5; 0.9 for IR"), SETS_OPEN),
        departs=(BATCHES,),
    )


def _seen(name: str, where: str, shows: str, chart: str, sets: tuple[str, ...]) -> Experiment:
    return Experiment(
        id=f"csp:{name}",
        of=PAPER,
        where=where,
        shows=shows,
        models=SEVEN,
        data="MileBench",
        metric="density" if "Weights" in chart else "Jensen-Shannon divergence",
        budgets="none",
        trial=ViewTrial(each=sets, charts=(chart,), samples=10),
        open_=(
            SAMPLE_OPEN,
            Open("bins, and the logarithm's base", "48 bins of the logarithm; 2"),
            Open("attention of decoding steps or of the prompt", "the prompt's last 32 queries"),
            UNREADABLE,
        ),
    )


WEIGHTS, APART = "Weights of self- and cross-attention", "Self- against cross-attention"
PRUNED = (FULL, *LOOKM_BASELINES, Arm(name="LOOK-M", spec=MERGED[-1].spec))

EXPERIMENTS = (
    Experiment(
        id="csp:fig1a",
        of=PAPER,
        where="Figure 1 (a)",
        shows='The gain on ALFRED. The text: "41%", with a budget cut by "13.6%" (L15, L52).',
        models=SEVEN,
        data="MileBench, ALFRED",
        metric="ROUGE-L",
        budgets="86.4%",
        trial=GridTrial(
            title="Figure 1 (a): ALFRED",
            arms=(*PRUNED, OURS, SMOOTHED),
            across=(Column(name="ALFRED", tasks=(ALFRED,)),),
            budgets=("86.4%",),
            plot=Plot("bars", ylabel="ROUGE-L, %"),
        ),
        cannot='the plot cannot be read, and the text does not say what "41%" is relative to, '
        "nor which budget was cut by 13.6%; the methods are compared at 86.4%.",
    ),
    _seen(
        "fig1b",
        "Figure 1 (b)",
        "How large weights of self- and cross-attention are.",
        WEIGHTS,
        (ALFRED,),
    ),
    _seen(
        "fig1c",
        "Figure 1 (c)",
        "How far apart both are, by layer.",
        APART,
        (ALFRED,),
    ),
    Experiment(
        id="csp:fig3",
        of=PAPER,
        where="Figure 3",
        shows="n-softmax on attention that is most to the other modality, and on one that is not.",
        models=SEVEN,
        data="one sample of ALFRED",
        metric="attention weights",
        budgets="20%",
        trial=Probe(measure=Smoothing(), each=(ALFRED,), samples=1),
        cannot="the two cases, their model and data are not named, and the plot cannot be read; "
        "the heads that pay most and least to the other modality stand in their place.",
    ),
    _table1(SEVEN, "7b"),
    _table1(THIRTEEN, "13b"),
    Experiment(
        id="csp:fig4",
        of=PAPER,
        where="Figure 4",
        shows="The share of cross-attention's list, from none to all.",
        models=SEVEN,
        data="MileBench",
        metric="mean over sets",
        budgets="20%",
        trial=GridTrial(
            title="Figure 4: ratio of cross-attention, MileBench",
            arms=tuple(
                Arm(name=f"cross ratio {ratio}", spec=f"{CSP},cross_ratio={ratio}")
                for ratio in ("0.0", "0.1", "0.3", "0.5", "0.7", "0.9", "1.0")
            ),
            across=some("T-4", "S-1", "S-3", "S-4", "IR"),
            budgets=("20%",),
            figures="csp_fig4",
            plot=Plot(
                "lines",
                x="cross_ratio",
                xlabel="share of the list by cross-attention",
                ylabel="score, %",
                together=True,
                caption="What the paper has of it is Table 1, at the ratios of Table 4.",
            ),
        ),
        open_=(
            Open("model, tasks and steps of the ratio", "LLaVA-1.5-7B, five tasks, seven steps"),
            Open("the axis, 1 for self alone (L266)", "given as the share of cross, its opposite"),
            Open("plotted values", "none is in the text: those of Table 1, at Table 4's ratios"),
        ),
    ),
    Experiment(
        id="csp:table2",
        of=PAPER,
        where="Table 2",
        shows="Time of decoding and size of the cache.",
        models=SEVEN,
        data="MileBench, ALFRED (L285)",
        metric="ms a token, GiB",
        budgets="60%, 30%, 20%, 10%",
        trial=GridTrial(
            title="Table 2: ALFRED",
            arms=(FULL, OURS, SMOOTHED),
            across=(
                Column(name="ms/token", tasks=(ALFRED,), value="ms/token"),
                Column(name="GiB", tasks=(ALFRED,), value="GiB"),
            ),
            budgets=("60%", "30%", "20%", "10%"),
            figures="csp_table2",
            samples=20,
            timed=True,
            warm_up=100,
            layout=BUDGETS_LAST,
        ),
        open_=(
            Open("number of samples and lengths", "the first 20, as long as they are"),
            Open("how memory was measured", "the bytes of keys and values after the prompt"),
        ),
        departs=("your device, not an RTX 4090",),
    ),
    Experiment(
        id="csp:fig5",
        of=PAPER,
        where="Figure 5",
        shows="n-softmax against softmax, with plain top-k and with CSP.",
        models=SEVEN,
        data="MileBench, ALFRED",
        metric="ROUGE-L",
        budgets="20%",
        trial=GridTrial(
            title="Figure 5: n-softmax, ALFRED",
            arms=SMOOTHING,
            across=(Column(name="ALFRED", tasks=(ALFRED,)),),
            budgets=("20%",),
            plot=Plot("bars", ylabel="ROUGE-L, %"),
        ),
        open_=(
            Open("budget", "20%"),
            Open(
                "what plain top-k is (L299)",
                "one ranking by CSP's score; half of it recent",
            ),
            UNREADABLE,
        ),
    ),
    Experiment(
        id="csp:fig6",
        of=PAPER,
        where="Figure 6",
        shows="Score against budget.",
        models=SEVEN,
        data="ALFRED, Spot-the-Diff, CLEVR-Change (L303-305)",
        metric="ROUGE-L",
        budgets="5% to 60%",
        trial=GridTrial(
            title="Figure 6: score against budget",
            arms=(*PRUNED, OURS, SMOOTHED),
            across=(
                Column(name="ALFRED", tasks=(ALFRED,)),
                Column(name="Spot-the-Diff", tasks=("milebench_s3(set=Spot-the-Diff)",)),
                Column(name="CLEVR-Change", tasks=("milebench_s3(set=CLEVR-Change)",)),
            ),
            budgets=("5%", "10%", "20%", "40%", "60%"),
            plot=Plot("lines", ylabel="ROUGE-L, %"),
        ),
        open_=(
            Open("budgets and methods", "five up to 60% (L303); those of Table 3"),
            UNREADABLE,
        ),
    ),
    _table3("internvl", "internvl-chat-v1.5"),
    _table3("mobilevlm", "mobilevlm-v2-3b"),
    _seen(
        "fig7",
        "Figure 7",
        "Weights of both kinds, set by set.",
        WEIGHTS,
        NAMED,
    ),
    _seen(
        "fig8",
        "Figure 8",
        "How far apart both are, set by set.",
        APART,
        (*NAMED, "milebench_t1(set=ActionPrediction)"),
    ),
)
FACTS = (
    FactsTable(
        id="csp:table4",
        of=PAPER,
        where="Table 4",
        shows="The cross ratio of each task: a setting, and what csp:table1-7b and -13b use.",
        columns=("model", "T-1", "T-2", "T-3", "T-4", "S-1", "S-2", "S-3", "S-4", "NH", "IR"),
        rows=(
            ("LLaVA-7B", *("0.5",) * 3, "0.1", *("0.5",) * 5, "0.9"),
            ("LLaVA-13B", *("0.5",) * 9, "0.9"),
        ),
        note="Lines 428-429. S-5 is missing, and the appendix names ratios of single sets that "
        "differ (L424).",
    ),
    FactsTable(
        id="csp:table5",
        of=PAPER,
        where="Table 5",
        shows="MileBench's sets, samples and metrics.",
        columns=("task", "sets", "samples", "metric"),
        rows=(
            ("T-1", "Action Localization, Prediction, Sequence", "200", "accuracy"),
            ("T-2", "Object Existence, Interaction, Shuffle, Moving Attribute", "200", "accuracy"),
            ("T-3", "Egocentric Navigation, Moving Direction", "200", "accuracy"),
            (
                "T-4",
                "Counterfactual Inference, State Change, Character Order, Scene Transition",
                "200",
                "accuracy",
            ),
            ("S-1", "WebQA, TQA, MultiModalQA, WikiVQA", "200", "accuracy"),
            ("S-2", "SlideVQA, OCR-VQA, DocVQA", "200", "accuracy"),
            ("S-3", "Spot-the-Diff, CLEVR-Change", "200", "ROUGE-L"),
            ("S-4", "MMCoQA, ALFRED", "200", "accuracy"),
            ("S-5", "nuScenes", "200", "accuracy"),
            ("N-1", "TextNeedleInAHaystack", "320", "accuracy"),
            ("N-2", "ImageNeedleInAHaystack", "320", "accuracy"),
            ("I-1", "GPR1200", "600", "accuracy"),
        ),
        note="Lines 457-470. Whether 200 is of a set or of a task is not said; LOOK-M scores "
        "ALFRED by ROUGE-L.",
    ),
    FactsTable(
        id="csp:theory-kl",
        of=PAPER,
        where="appendix (L398-418)",
        shows="A derivation: n-softmax is nearer to the full softmax than a softmax of what is "
        "kept.",
        columns=("step", "what it says", "what it leaves out"),
        rows=(
            (
                "eq. 17",
                "weights over kept tokens are those of a distribution",
                "they add up to Z+ / (Z+ + n), not to 1",
            ),
            (
                "last step (L414)",
                "the divergence falls with n",
                "the factor above; with n > Z - Z+ the printed value is negative",
            ),
        ),
    ),
)
