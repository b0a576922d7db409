"""LOOK-M: Look-Once Optimization in KV Cache (arXiv:2406.18139)."""

from __future__ import annotations

from foveate.methods.lookm import lookm
from foveate_lab.reproduce.experiment import UNREADABLE, Experiment, FactsTable, Open, Reproduced
from foveate_lab.reproduce.plots import Plot
from foveate_lab.reproduce.table import BUDGETS_FIRST, BUDGETS_LAST, METHODS_DOWN, TableLayout
from foveate_lab.reproduce.trials import Arm, Column, GridTrial, ViewTrial

PAPER = Reproduced(
    method=lookm,
    name="LOOK-M",
    open_=(
        Open("prompts, cuts and answer lengths", "MileBench's: 4,096 tokens, 512 for answers"),
        Open('"default configurations" of the baselines', "half of the budget recent, as LOOK-M"),
        Open("windows and kernels", "SnapKV: half of the budget, kernel 5, average"),
        Open("whether scores are of heads or of their sum", "of every KV head"),
        Open("samples of each set", "all of them"),
        Open("pixels and patches", "those of the model's processor"),
        Open("temperature, seeds and number type", "greedy; that of the weights"),
    ),
)
SEVEN, THIRTEEN = ("llava-1.5-7b",), ("llava-1.5-13b",)
INTERNVL, MOBILEVLM = ("internvl-chat-v1.5",), ("mobilevlm-v2-3b",)
# sets whose settings differ in CSP's release, or that a table leaves out, are asked one by one
SETS = {
    "T-1": ("ActionLocalization", "ActionPrediction", "ActionSequence"),
    "T-3": ("EgocentricNavigation", "MovingDirection"),
    "T-4": ("CounterfactualInference", "StateChange", "CharacterOrder", "SceneTransition"),
    "S-1": ("WebQA", "TQA", "MultiModalQA", "WikiVQA"),
    "S-2": ("SlideVQA", "OCR-VQA", "DocVQA"),
    "S-3": ("Spot-the-Diff", "CLEVR-Change"),
}
WHOLE = {"NH": ("milebench_n1", "milebench_n2"), "IR": ("milebench_i1",)}


def tasks_of(column: str) -> tuple[str, ...]:
    """The benchmarks of a column of MileBench."""
    task = f"milebench_{column.replace('-', '').lower()}"
    each = tuple(f"{task}(set={name})" for name in SETS.get(column, ()))
    return WHOLE.get(column, each or (task,))


MILEBENCH = tuple(
    Column(name=name, tasks=tasks_of(name), value="over sets")
    for name in ("T-1", "T-2", "T-3", "T-4", "S-1", "S-2", "S-3", "S-4", "S-5", "NH", "IR")
)
FULL = Arm(name="Full cache", spec="full")
BASELINES = (
    Arm(name="H2O", spec="h2o:budget={B},recent=0.5"),
    Arm(name="SnapKV", spec="snapkv:budget={B},window=0.5,kernel=5,pool=avg"),
    Arm(name="RoCo", spec="roco:budget={B},recent=0.5", raised=("1%",)),  # its four sinks
)
WAYS = {"A": "averaged", "W": "weighted", "P": "pivotal"}
MERGED = tuple(
    Arm(
        name=f"LOOK-M ({'TP + ' if prior else ''}{letter}-Merge)",
        spec=f"lookm:budget={{B}},recent=0.5,text_prior={str(prior).lower()},merging={way}",
    )
    for prior in (False, True)
    for letter, way in WAYS.items()
)
OURS = Arm(name="LOOK-M", spec=MERGED[-1].spec)
COMPARED = (FULL, *BASELINES, OURS)
ALFRED = "milebench_s4(set=ALFRED)"
SPLIT = Open("how the budget is split into recent and important tokens", "in halves")
FOUR = (
    Column(name="CLEVR-Change", tasks=("milebench_s3(set=CLEVR-Change)",)),
    Column(name="Spot-the-Diff", tasks=("milebench_s3(set=Spot-the-Diff)",)),
    Column(name="TextNeedle", tasks=("milebench_n1",)),
    Column(name="MMCoQA", tasks=("milebench_s4(set=MMCoQA)",)),
)


def some(*names: str) -> tuple[Column, ...]:
    """These columns of MileBench."""
    by_name = {column.name: column for column in MILEBENCH}
    return tuple(by_name[name] for name in names)


def _milebench(
    name: str,
    where: str,
    shows: str,
    models: tuple[str, ...],
    arms: tuple[Arm, ...],
    across: tuple[Column, ...],
    budgets: tuple[str, ...],
    *open_: Open,
    layout: TableLayout = METHODS_DOWN,
) -> Experiment:
    return Experiment(
        id=f"lookm:{name}",
        of=PAPER,
        where=where,
        shows=shows,
        models=models,
        data="MileBench",
        metric="accuracy, ROUGE-L; mean over sets",
        budgets=", ".join(budgets),
        trial=GridTrial(
            title=f"{where}: {models[0]}, MileBench",
            arms=arms,
            across=across,
            budgets=budgets,
            figures=f"lookm_{name}",
            layout=layout,
        ),
        open_=open_,
    )


EXPERIMENTS = (
    Experiment(
        id="lookm:fig2",
        of=PAPER,
        where="Figure 2",
        shows="The attention that text and images receive while the prompt is read.",
        models=SEVEN,
        data="MileBench, ALFRED",
        metric="attention received",
        budgets="none",
        trial=ViewTrial(
            each=(ALFRED,),
            charts=("What text and images receive",),
            samples=1,
        ),
        open_=(
            Open("model, sample, layer and head", "LLaVA-1.5-7B, ALFRED's first, all"),
            UNREADABLE,
        ),
    ),
    _milebench(
        "table1-7b",
        "Table 1, 7B",
        "Six ways to merge, and three baselines.",
        SEVEN,
        (FULL, *BASELINES, *MERGED),
        MILEBENCH,
        ("20%",),
    ),
    _milebench(
        "table1-13b",
        "Table 1, 13B",
        "Six ways to merge, and three baselines.",
        THIRTEEN,
        (FULL, *BASELINES, *MERGED),
        MILEBENCH,
        ("20%",),
    ),
    _milebench(
        "table2",
        "Table 2",
        "Another model.",
        INTERNVL,
        COMPARED,
        some("T-2", "S-4", "NH", "IR"),
        ("20%",),
        Open("budget", "20%, as Table 7 (L416)"),
    ),
    _milebench(
        "table3",
        "Table 3",
        "A small model.",
        MOBILEVLM,
        COMPARED,
        some("T-2", "S-4", "NH", "IR"),
        ("20%",),
        Open("budget", "20%, as Table 7 (L416)"),
    ),
    Experiment(
        id="lookm:fig5",
        of=PAPER,
        where="Figure 5",
        shows="Score against budget.",
        models=SEVEN,
        data="CLEVR-Change, Spot-the-Diff, TextNeedle, MMCoQA (L231)",
        metric="ROUGE-L, accuracy",
        budgets="5% to 50%",
        trial=GridTrial(
            title="Figure 5: score against budget",
            arms=COMPARED,
            across=FOUR,
            budgets=("5%", "10%", "20%", "35%", "50%"),
            plot=Plot("lines", ylabel="score, %"),
        ),
        open_=(
            Open("budgets between 5% and all, and baselines", "five; those of Table 2"),
            SPLIT,
            UNREADABLE,
        ),
    ),
    Experiment(
        id="lookm:fig6",
        of=PAPER,
        where="Figure 6",
        shows="How a budget is split into recent and important tokens.",
        models=SEVEN,
        data="StateChange and MMCoQA (L235), and two more",
        metric="accuracy, ROUGE-L",
        budgets="20%",
        trial=GridTrial(
            title="Figure 6: recent and important tokens",
            arms=tuple(
                Arm(
                    name=f"{name}, {share:g} recent",
                    spec=spec.replace("{R}", f"{share:g}"),
                )
                for share in (0.1, 0.25, 0.5, 0.75, 0.9)
                for name, spec in (
                    ("LOOK-M", "lookm:budget={B},recent={R}"),
                    ("H2O", "h2o:budget={B},recent={R}"),
                )
            ),
            across=(
                Column(name="StateChange", tasks=("milebench_t4(set=StateChange)",)),
                *(column for column in FOUR if column.name != "TextNeedle"),
            ),
            budgets=("20%",),
            plot=Plot(
                "lines",
                x="recent",
                xlabel="recent share of the budget",
                ylabel="score, %",
            ),
        ),
        open_=(
            Open("budget, ratios and baselines", "20%, five ratios, H2O"),
            Open("the other two sets", "CLEVR-Change and Spot-the-Diff"),
            UNREADABLE,
        ),
    ),
    Experiment(
        id="lookm:table4",
        of=PAPER,
        where="Table 4",
        shows="Time of decoding and size of the cache.",
        models=SEVEN,
        data="the first 20 of ALFRED (L364)",
        metric="ms a token, GiB",
        budgets="50%, 35%, 20%, 5%",
        trial=GridTrial(
            title="Table 4: ALFRED",
            arms=(FULL, OURS),
            across=(
                Column(name="ms/token", tasks=(ALFRED,), value="ms/token"),
                Column(name="GiB", tasks=(ALFRED,), value="GiB"),
            ),
            budgets=("50%", "35%", "20%", "5%"),
            figures="lookm_table4",
            samples=20,
            timed=True,
            layout=BUDGETS_LAST,
        ),
        open_=(
            Open("model", "LLaVA-1.5-7B: the formula's numbers (L371-373) are a 7B's"),
            Open("random entries (L239) or the first of ALFRED (L364)", "the first of ALFRED"),
            Open("answer length, batch and warm-up", "as long as answers are; one; none"),
        ),
        departs=(
            "your device, not an RTX 3090",
            "memory is measured, not by a formula (L368-375)",
        ),
    ),
    _milebench(
        "table6",
        "Table 6",
        "What is left at 1%.",
        SEVEN,
        COMPARED,
        MILEBENCH,
        ("1%",),
        SPLIT,
    ),
    _milebench(
        "table7-mobilevlm",
        "Table 7, MobileVLM",
        "A small model, all of MileBench.",
        MOBILEVLM,
        COMPARED,
        MILEBENCH,
        ("20%",),
    ),
    _milebench(
        "table7-internvl",
        "Table 7, InternVL",
        "Another model, all of MileBench.",
        INTERNVL,
        COMPARED,
        MILEBENCH,
        ("20%",),
    ),
    _milebench(
        "table8",
        "Table 8",
        "With and without the text prior.",
        SEVEN,
        (
            Arm(name="without text prior", spec=MERGED[2].spec),
            Arm(name="with text prior", spec=MERGED[-1].spec),
        ),
        MILEBENCH,
        ("60%", "20%", "5%", "1%"),
        Open("merging", "pivotal"),
        SPLIT,
        Open("S-2 at 60%, whose cell is empty", "nothing to compare with"),
        layout=BUDGETS_FIRST,
    ),
)
FACTS = (
    FactsTable(
        id="lookm:table5",
        of=PAPER,
        where="Table 5",
        shows="MileBench's tasks and metrics.",
        columns=("task", "sets", "metric"),
        rows=(
            ("T-1", "Action Localization, Prediction, Sequence", "accuracy"),
            ("T-2", "Object Existence, Interaction, Shuffle, Moving Attribute", "accuracy"),
            ("T-3", "Egocentric Navigation, Moving Direction", "accuracy"),
            (
                "T-4",
                "Counterfactual Inference, State Change, Character Order, Scene Transition",
                "accuracy",
            ),
            ("S-1", "WebQA, TQA, MultiModalQA, WikiVQA", "accuracy"),
            ("S-2", "SlideVQA, OCR-VQA, DocVQA", "accuracy"),
            ("S-3", "Spot-the-Diff, CLEVR-Change", "ROUGE-L"),
            ("S-4", "MMCoQA: accuracy; ALFRED: ROUGE-L", "accuracy, ROUGE-L"),
            ("S-5", "nuScenes", "accuracy"),
            ("N-1", "TextNeedleInAHaystack", "accuracy"),
            ("N-2", "ImageNeedleInAHaystack", "accuracy"),
            ("I-1", "GPR1200", "accuracy"),
        ),
        note="Lines 377-393.",
    ),
)
