"""DAVID: Dual-Stage Adaptive Vision-Text Integrated Decoupling (AAAI 2026)."""

from __future__ import annotations

from foveate.methods.david import david
from foveate_lab.reproduce.experiment import Experiment, Open, Reproduced
from foveate_lab.reproduce.plots import Plot
from foveate_lab.reproduce.probes import TokenMap
from foveate_lab.reproduce.table import (
    BUDGETS_LAST,
    METHODS_ACROSS,
    METHODS_DOWN,
    MODELS_ACROSS,
    TableLayout,
)
from foveate_lab.reproduce.trials import Arm, Column, GridTrial, Probe, ViewTrial

PAPER = Reproduced(
    method=david,
    name="DAVID",
    open_=(
        Open("recent tokens r", "half of the budget"),
        Open("pooling", "maximum, kernel 5"),
        Open('whether a "sparsity" of 0.2 is kept or cut', "kept: a budget of 20%, as in Table 5"),
        Open("rho, vision over text (L105) or its opposite (L151)", "vision over text"),
        Open("eq. 6 divided by r (L113) or not (L139)", "divided"),
        Open("settings of the baselines", "half of the budget recent; LOOK-M with its text prior"),
        Open(
            "how images are brought to the squares that LLaVA-1.5 reads",
            "padded, as VLMEvalKit does",
        ),
        Open("five runs that are averaged", "one, greedy: all are the same"),
        Open("prompts and answer lengths, VLMEvalKit's", "those of foveate's benchmarks"),
        Open("number type and attention backend", "yours"),
    ),
)
SEVEN, BOTH = ("llava-1.5-7b",), ("llava-1.5-7b", "llava-1.5-13b")
FULL = Arm(name="Full cache", spec="full")
SNAPKV = Arm(name="SnapKV", spec="snapkv:budget={B},window=0.5,kernel=5,pool=max")
H2O = Arm(name="H2O", spec="h2o:budget={B},recent=0.5")


def _david(rho: int, more: str = "") -> str:
    return f"david:budget={{B}},recent=0.5,rho={rho}.0,threshold=0.3,kernel=5{more}"


def _compared(rho: int) -> tuple[Arm, ...]:
    return (
        FULL,
        H2O,
        SNAPKV,
        Arm(name="LOOK-M", spec="lookm:budget={B},recent=0.5,text_prior=true,merging=pivotal"),
        Arm(name="CSP", spec="csp:budget={B},recent=0.5,n=1.0"),
        Arm(name="MEDA", spec="meda:budget={B},recent=0.5"),
        Arm(name="DAVID", spec=_david(rho)),
    )


MM_VET_TASK = "mm_vet(image=before)"


def _decoupled(task: str) -> Column:
    """In how many layers DAVID ranks vision and text apart: where in none, it is SnapKV."""
    return Column(name="decoupled layers", tasks=(task,), value="decoupled layers")


KINDS = {
    "Text Recog.": (
        "Regular Text Recognition",
        "Irregular Text Recognition",
        "Artistic Text Recognition",
        "Handwriting Recognition",
        "Digit String Recognition",
        "Non-Semantic Text Recognition",
    ),
    "Scene VQA": ("Scene Text-centric VQA",),
    "Doc VQA": ("Doc-oriented VQA",),
    "KIE": ("Key Information Extraction",),
    "HMER": ("Handwritten Mathematical Expression Recognition",),
}
OCRBENCH = (
    *(
        Column(name=name, tasks=("ocrbench",), value="count", label="type", part=part)
        for name, part in KINDS.items()
    ),
    Column(name="Final Score", tasks=("ocrbench",), value="count"),
    _decoupled("ocrbench"),
)
MM_VET = (
    *(
        Column(name=name.upper(), tasks=(MM_VET_TASK,), label="capability", part=(name,))
        for name in ("rec", "ocr", "know", "gen", "spat", "math")
    ),
    Column(name="Overall Score", tasks=(MM_VET_TASK,)),
    _decoupled(MM_VET_TASK),
)
SKILLS = {
    "SCI": "scientific reasoning",
    "NUM": "numeric commonsense",
    "ARI": "arithmetic reasoning",
    "GEO": "geometry reasoning",
    "ALG": "algebraic reasoning",
    "LOG": "logical reasoning",
    "STA": "statistical reasoning",
}
TASKS = {
    "TQA": "textbook question answering",
    "VQA": "visual question answering",
    "GPS": "geometry problem solving",
    "MWP": "math word problem",
    "FQA": "figure question answering",
}
ORDER = ("SCI", "TQA", "NUM", "ARI", "VQA", "GEO", "ALG", "GPS", "MWP", "LOG", "FQA", "STA")
MATHVISTA = (
    *(
        Column(
            name=name,
            tasks=("mathvista",),
            label="skills" if name in SKILLS else "task",
            part=(SKILLS.get(name) or TASKS[name],),
        )
        for name in ORDER
    ),
    Column(name="Overall Score", tasks=("mathvista",)),
    _decoupled("mathvista"),
)
JUDGE = "a judge: --judge MODULE:CALLABLE, a language model that you have"
PAID = (
    "a version of GPT-4 that is not named and has to be paid graded the answers; with another "
    "judge it runs."
)
TYPES_OPEN = Open("the five sub-scores", "OCRBench's kinds of questions, as its authors sum them")


def _ocrbench(number: int, arms: tuple[Arm, ...], layout: TableLayout = METHODS_DOWN) -> GridTrial:
    return GridTrial(
        title=f"Table {number}: OCRBench",
        arms=arms,
        across=OCRBENCH,
        budgets=("20%",),
        figures=f"david_table{number}",
        layout=layout,
    )


EXPERIMENTS = (
    Experiment(
        id="david:fig1b",
        of=PAPER,
        where="Figure 1 (b)",
        shows="The attention that text and image tokens get: the first layer's is to text (L66).",
        models=SEVEN,
        data="OCRBench",
        metric="attention received",
        budgets="none",
        trial=ViewTrial(
            each=("ocrbench",),
            charts=("What text and images receive",),
            samples=1,
        ),
        open_=(
            Open("the input", "OCRBench's first sample"),
            Open("plotted values", "none is in the text: all layers are drawn"),
        ),
    ),
    Experiment(
        id="david:fig1c",
        of=PAPER,
        where="Figure 1 (c)",
        shows="Text and image tokens in two dimensions, layer by layer.",
        models=SEVEN,
        data="OCRBench",
        metric="t-SNE",
        budgets="none",
        trial=Probe(measure=TokenMap(), each=("ocrbench",), samples=1),
        open_=(
            Open("model and input", "LLaVA-1.5-7B, OCRBench's first sample"),
            Open("layers, perplexity and seed", "four from the first to the last, 30, 0"),
            Open("what of a token is drawn", "its keys in all heads"),
            Open("plotted values", "none is in the text: drawn, with nothing to compare with"),
        ),
    ),
    Experiment(
        id="david:table1",
        of=PAPER,
        where="Table 1",
        shows="Six methods on OCRBench.",
        models=BOTH,
        data="OCRBench",
        metric="right answers, of 1,000",
        budgets="20%",
        trial=_ocrbench(1, _compared(2), MODELS_ACROSS),
        open_=(TYPES_OPEN,),
    ),
    Experiment(
        id="david:table2",
        of=PAPER,
        where="Table 2",
        shows="Six methods on MM-Vet.",
        models=BOTH,
        data="MM-Vet",
        metric="a judge's grades, %",
        budgets="20%",
        trial=GridTrial(
            title="Table 2: MM-Vet",
            arms=_compared(2),
            across=MM_VET,
            budgets=("20%",),
            figures="david_table2",
            layout=MODELS_ACROSS,
        ),
        cannot=PAID,
        bring=(JUDGE,),
    ),
    Experiment(
        id="david:table3",
        of=PAPER,
        where="Table 3",
        shows="Six methods on MathVista.",
        models=BOTH,
        data="MathVista testmini",
        metric="right answers, %",
        budgets="20%",
        trial=GridTrial(
            title="Table 3: MathVista",
            arms=_compared(1),
            across=MATHVISTA,
            budgets=("20%",),
            figures="david_table3",
            layout=MODELS_ACROSS,
        ),
        open_=(Open("split", "testmini"),),
        cannot=PAID,
        bring=(JUDGE,),
    ),
    Experiment(
        id="david:table4",
        of=PAPER,
        where="Table 4",
        shows="Without decoupling, with it in all layers, and with the rate that ends it.",
        models=SEVEN,
        data="OCRBench",
        metric="right answers, of 1,000",
        budgets="20%",
        trial=_ocrbench(
            4,
            (
                Arm(name="no decoupling, no rate", spec=_david(2, ",rule=never")),
                Arm(name="decoupling only", spec=_david(2, ",rule=always")),
                Arm(name="DAVID", spec=_david(2)),
            ),
        ),
        open_=(TYPES_OPEN, Open("model", "LLaVA-1.5-7B, by the figures that Table 1 has, too")),
    ),
    Experiment(
        id="david:fig3",
        of=PAPER,
        where="Figure 3",
        shows='Score against budget on MM-Vet. The text: above the full cache at "60%" (L221).',
        models=SEVEN,
        data="MM-Vet",
        metric="a judge's grades, %",
        budgets="10% to 80%",
        trial=GridTrial(
            title="Figure 3: MM-Vet against budget",
            arms=_compared(2),
            across=MM_VET[-2:],
            budgets=("10%", "20%", "40%", "60%", "80%"),
            figures="david_fig3",
            plot=Plot(
                "lines",
                columns=("Overall Score",),
                ylabel="score, %",
                caption="What the paper has of it is Table 2, at 20%.",
            ),
        ),
        open_=(Open("model and budgets", "LLaVA-1.5-7B, five from 10% to 80%"),),
        cannot=f"no plotted value is in the text, and {PAID}",
        bring=(JUDGE,),
    ),
    Experiment(
        id="david:table5",
        of=PAPER,
        where="Table 5",
        shows="Time of decoding and size of the cache.",
        models=SEVEN,
        data="the first 20 of MathVista (L225)",
        metric="ms a token, GB",
        budgets="60%, 20%, 5%",
        trial=GridTrial(
            title="Table 5: MathVista",
            arms=(FULL, Arm(name="DAVID", spec=_david(1))),
            across=(
                Column(name="ms/token", tasks=("mathvista",), value="ms/token"),
                Column(name="GB", tasks=("mathvista",), value="GiB"),
                _decoupled("mathvista"),
            ),
            budgets=("60%", "20%", "5%"),
            figures="david_table5",
            samples=20,
            timed=True,
            layout=BUDGETS_LAST,
        ),
        open_=(
            Open("model", "LLaVA-1.5-7B"),
            Open("answer length, batch and warm-up", "as long as answers are; one; none"),
            Open("how memory was measured", "the bytes of keys and values after the prompt, GiB"),
        ),
        departs=("your device, not an RTX 3090",),
    ),
    Experiment(
        id="david:table6",
        of=PAPER,
        where="Table 6",
        shows="Decoupling over H2O.",
        models=SEVEN,
        data="OCRBench",
        metric="right answers, of 1,000",
        budgets="20%",
        trial=_ocrbench(
            6,
            (
                H2O,
                Arm(
                    name="H2O (DAVID)",
                    spec="h2o(recent=0.5)+david(recent=0.5,rho=2.0,threshold=0.3):budget={B}",
                ),
            ),
        ),
        open_=(TYPES_OPEN, Open("budget and threshold for H2O's score", "20%, 0.3")),
    ),
    Experiment(
        id="david:table7",
        of=PAPER,
        where="Table 7",
        shows="Another model.",
        models=("qwen-vl",),
        data="OCRBench, MM-Vet",
        metric="right answers of 1,000; a judge's grades, %",
        budgets="40%",
        trial=GridTrial(
            title="Table 7: Qwen-VL",
            arms=(FULL, SNAPKV, Arm(name="DAVID", spec=_david(2))),
            across=(
                Column(name="OCRBench", tasks=("ocrbench",), value="count"),
                Column(name="MM-Vet", tasks=(MM_VET_TASK,)),
                _decoupled("ocrbench"),
            ),
            budgets=("40%",),
            figures="david_table7",
            layout=METHODS_ACROSS,
        ),
        open_=(Open("rho and threshold for this model", "2, 0.3"),),
        departs=("MM-Vet is graded by the judge that you bring; without one that column is empty",),
        bring=(JUDGE,),
    ),
)
