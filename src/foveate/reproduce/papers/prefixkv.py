"""PrefixKV: Adaptive Prefix KV Cache (arXiv:2412.03409)."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from foveate.reproduce.calibrations import Calibration
from foveate.reproduce.experiment import Experiment, Facts, Open, Paper
from foveate.reproduce.papers.mixkv import LONGBENCH
from foveate.reproduce.parts import (
    Arm,
    Batch,
    Column,
    Grid,
    Probe,
    Throughput,
    View,
    columns,
)
from foveate.reproduce.probes import Searches

PAPER = Paper(
    name="PrefixKV",
    title="PrefixKV: Adaptive Prefix KV Cache is What Vision Instruction-Following Models Need for "
    "Efficient Generation",
    arxiv="2412.03409",
    open_=(
        Open("tolerance of the search by default", "none: it goes on to the budget"),
        Open("distance at which decoding prunes", "25 tokens, as the authors' code"),
        Open("first and last tokens that are always kept", "one each"),
        Open(
            "prompts, answer lengths and pixels",
            "those of foveate's benchmarks; 1,024 tokens, the image behind MM-Vet's question, as "
            "the authors' code",
        ),
        Open("samples of MM-Vet", "the first 100, as the authors' code"),
        Open("the answer whose perplexity is measured on MM-Vet", "the benchmark's"),
        Open(
            "settings of the baselines",
            "H2O: last token, the rest by attention; Local: first token, the rest recent; Elastic: "
            "one anchor each; Pyramid: slope 20",
        ),
        Open("seeds and number of runs", "seed 0, one run"),
        Open("number type", "that of the weights"),
    ),
)
SEVEN, BOTH = ("llava-1.5-7b",), ("llava-1.5-7b", "llava-1.5-13b")
BUDGETS = tuple(f"{number}0%" for number in range(1, 10))
ESTIMATE = Calibration(method="prefixkv", task="llava_instruct", samples=10, at_a_budget=True)
ESTIMATED = {"prefixes": ESTIMATE}
PUBLIC = (
    "public weights, which have seen LLaVA-Description: the authors' retraining without it (L143) "
    "was not released"
)
SAMPLED = (
    "the uncompressed ROUGE compares one greedy answer with itself, and so is 1: the paper "
    "compares two draws at temperature 0.2 (L145)"
)
FULL = Arm(name="Full cache", spec="full")
LOCAL = Arm(name="Local", spec="streaming_llm:budget={B},sinks=1,when=over_budget(growing=true)")
H2O = Arm(name="H2O", spec="h2o:budget={B},recent=1,when=over_budget(growing=true)")
ELASTIC = Arm(name="Elastic", spec="elastic_cache:budget={B},distance=25")
PYRAMID = Arm(
    name="Pyramid", spec="pyramidkv:budget={B},beta=20,window=8,kernel=7,pool=max", models=SEVEN
)
OURS = Arm(name="PrefixKV", spec="prefixkv:budget={B},profile={prefixes},distance=25")
ONLINE = "prefixkv:budget={B},distance=25"
BASELINES = (FULL, LOCAL, H2O, ELASTIC)
PPL = Column(name="PPL", tasks=("mm_vet",), value="PPL")
CUT = 7_950
NEEDLES = "needle_grid(lengths=1000/2000/4000/7500)"
LLM_OPEN = (
    Open("where long texts are cut", "7,950 tokens, the middle left out, as PyramidKV does"),
    Open("which sets", "the 16 English ones"),
    Open("samples of the estimation for language models", "10 of LongBench's Qasper"),
)
LLM_ESTIMATED = {"text_prefixes": replace(ESTIMATE, task="longbench_qasper", longest_prompt=CUT)}
LLM_OURS = Arm(name="PrefixKV", spec="prefixkv:budget={B},profile={text_prefixes},distance=25")
LLM_BASELINES = (
    FULL,
    Arm(name="Local", spec="streaming_llm:budget={B},sinks=4"),
    Arm(name="H2O", spec="h2o:budget={B},recent=0.5"),
    Arm(name="Pyramid", spec="pyramidkv:budget={B},beta=20,window=8,kernel=7,pool=max"),
)


def _both(task: str) -> tuple[Column, ...]:
    return tuple(Column(name=value, tasks=(task,), value=value) for value in ("PPL", "ROUGE"))


def _mm_vet(
    number: int, what: str, arms: tuple[Arm, ...], budgets: tuple[str, ...] = BUDGETS
) -> Grid:
    """Perplexity of LLaVA-1.5-7B on MM-Vet: the setting of all analyses (L164)."""
    return Grid(
        title=f"Table {number}: {what}, MM-Vet",
        models=SEVEN,
        arms=arms,
        across=(PPL,),
        budgets=budgets,
        figures=f"prefixkv_table{number}",
        samples=100,
    )


def _longbench(name: str, title: str, arms: tuple[Arm, ...], budgets: tuple[str, ...]) -> Grid:
    """All sets beside their mean, which is what the paper prints."""
    return Grid(
        title=title,
        models=("llama-3-8b",),
        arms=arms,
        across=columns(LONGBENCH),
        budgets=budgets,
        figures=f"prefixkv_{name}",
        average="LongBench",
        prompt=CUT,
    )


def _by_profile(names: dict[str, str]) -> tuple[Arm, ...]:
    return tuple(
        Arm(name=name, spec=f"prefixkv:budget={{B}},profile={{{profile}}},distance=25")
        for name, profile in names.items()
    )


NUMBERS = {f"prefixes_of_{n}": replace(ESTIMATE, samples=n) for n in (1, 5, 10, 20)}
DOMAINS = {
    "prefixes_vqa": replace(ESTIMATE, task="textvqa"),
    "prefixes_ocr": replace(ESTIMATE, task="ocrbench"),
    "prefixes_reasoning": replace(ESTIMATE, task="mathvista"),
}
LENGTHS = {
    "prefixes_short": replace(ESTIMATE, words=(0, 100)),
    "prefixes_longer": replace(ESTIMATE, words=(100, 500)),
    "prefixes_long": replace(ESTIMATE, words=(500, inf)),
}
MM_VET = "MM-Vet"
UNREADABLE = Open("plotted values", "none is in the text: drawn, with nothing to compare with")
FIRST = Open("which samples", "the first 100 of MM-Vet")
WEIGHTS_OPEN = Open("which weights the analyses measure", "the public ones")


def _analysis(
    number: int,
    shows: str,
    arms: tuple[Arm, ...],
    calibrations: dict[str, Calibration],
    *open_: Open,
    budgets: tuple[str, ...] = BUDGETS,
) -> Experiment:
    return Experiment(
        id=f"prefixkv:table{number}",
        paper=PAPER,
        where=f"Table {number}",
        shows=shows,
        models=SEVEN,
        data=MM_VET,
        metric="perplexity",
        budgets=", ".join(budgets),
        parts=(_mm_vet(number, shows.rstrip("."), arms, budgets),),
        open_=(WEIGHTS_OPEN, *open_),
        departs=(PUBLIC,),
        calibrations=calibrations,
    )


EXPERIMENTS = (
    Experiment(
        id="prefixkv:fig2",
        paper=PAPER,
        where="Figure 2",
        shows="The share of a layer's attention that its most important tokens hold.",
        models=SEVEN,
        data=MM_VET,
        metric="cumulative priority, Gini coefficient",
        budgets="none",
        parts=(
            View(
                models=SEVEN,
                each=("mm_vet",),
                charts=("How concentrated attention is", "Gini coefficient of each layer"),
                samples=1,
            ),
        ),
        open_=(
            Open("model, sample and budget", "LLaVA-1.5-7B, MM-Vet's first, no line of a budget"),
            Open("whether the Gini coefficient is the area or twice it", "twice, as usual"),
            UNREADABLE,
        ),
    ),
    Experiment(
        id="prefixkv:table1",
        paper=PAPER,
        where="Table 1",
        shows="Five methods on detailed descriptions.",
        models=BOTH,
        data="LLaVA-Description, 1,000 samples (L143)",
        metric="perplexity, ROUGE-L to the full cache's answer",
        budgets=", ".join(BUDGETS),
        parts=(
            Grid(
                title="Table 1: LLaVA-Description",
                models=BOTH,
                arms=(*BASELINES, PYRAMID, OURS),
                across=_both("llava_description"),
                budgets=BUDGETS,
                figures="prefixkv_table1",
                samples=1000,
            ),
        ),
        departs=(SAMPLED,),
        cannot="the models that were measured, retrained without these samples (L143), were never "
        "released; it runs with the public weights, which were trained on them.",
        calibrations=ESTIMATED,
    ),
    Experiment(
        id="prefixkv:table2",
        paper=PAPER,
        where="Table 2",
        shows="Five methods on open questions.",
        models=BOTH,
        data=MM_VET,
        metric="perplexity, ROUGE-L to the full cache's answer",
        budgets=", ".join(BUDGETS),
        parts=(
            Grid(
                title="Table 2: MM-Vet",
                models=BOTH,
                arms=(*BASELINES, PYRAMID, OURS),
                across=_both("mm_vet"),
                budgets=BUDGETS,
                figures="prefixkv_table2",
                samples=100,
            ),
        ),
        departs=(PUBLIC, SAMPLED),
        calibrations=ESTIMATED,
    ),
    Experiment(
        id="prefixkv:table3",
        paper=PAPER,
        where="Table 3",
        shows="Time of batches at full load.",
        models=("llava-1.5-13b", "llava-1.5-7b"),
        data="prompts of 1,024 and 624 tokens, 512 and 256 new ones (L166)",
        metric="seconds, tokens a second",
        budgets="20%, 40%, 60%, 80%",
        parts=(
            Throughput(
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
        ),
        open_=(
            Open("A100 of 40 or 80 GB, number type and attention backend", "yours"),
            Open("whether the time has the prefill in it", "of the new tokens alone"),
            Open("the full cache's tokens a second, lost in the table", "nothing to compare with"),
        ),
    ),
    _analysis(
        4,
        "Same size for every layer, a pyramid, or prefixes.",
        (
            FULL,
            Arm(
                name="Same size for each layer",
                spec="prefixkv:budget=uniform(amount={B}),distance=25",
            ),
            Arm(name="Pyramid", spec="prefixkv:budget=pyramid(amount={B}),distance=25"),
            OURS,
        ),
        ESTIMATED,
        Open("what the baseline is", "PrefixKV's score, as much in every layer"),
    ),
    _analysis(
        5,
        "How many samples the layers' sizes are estimated from.",
        (
            FULL,
            *_by_profile({"1 sample": "prefixes_of_1"}),
            *_by_profile({f"{n} samples": f"prefixes_of_{n}" for n in (5, 10, 20)}),
        ),
        NUMBERS,
    ),
    Experiment(
        id="prefixkv:fig4",
        paper=PAPER,
        where="Figure 4",
        shows="Sizes of layers, and their Gini coefficients, over 100 samples. The text: a W "
        "(L231).",
        models=SEVEN,
        data="100 random samples (L183)",
        metric="share of tokens by layer; Gini coefficient",
        budgets="50%",
        parts=(
            Probe(models=SEVEN, measure=Searches(budgets=("50%",)), each=("mm_vet",)),
            View(
                models=SEVEN,
                each=("mm_vet",),
                charts=("Gini coefficient of each layer",),
            ),
        ),
        open_=(FIRST, UNREADABLE),
    ),
    _analysis(
        6,
        "Estimated once, or searched in every prompt.",
        (
            FULL,
            Arm(name="Offline", spec=OURS.spec),
            Arm(name="Online", spec=ONLINE),
        ),
        ESTIMATED,
    ),
    Experiment(
        id="prefixkv:table7",
        paper=PAPER,
        where="Table 7",
        shows="How far layers' sizes spread over samples, and lie from the estimate.",
        models=SEVEN,
        data=MM_VET,
        metric="standard deviation, mean absolute difference",
        budgets=", ".join(BUDGETS),
        parts=(
            Probe(
                models=SEVEN,
                measure=Searches(budgets=BUDGETS, spread="prefixkv_table7"),
                each=("mm_vet",),
            ),
        ),
        open_=(
            FIRST,
            Open("unit, and the mean over layers", "share of the prompt's tokens; all alike"),
            Open("the estimate that samples are compared with", "the mean of all of them"),
        ),
    ),
    _analysis(
        8,
        "Where the samples of the estimate are from.",
        _by_profile(
            {"VQA": "prefixes_vqa", "OCR": "prefixes_ocr", "reasoning": "prefixes_reasoning"}
        ),
        DOMAINS,
        Open("where the samples of a domain are from", "TextVQA, OCRBench, MathVista; 10 each"),
    ),
    _analysis(
        9,
        "How long the instructions of the estimate are.",
        _by_profile(
            {
                "(0, 100]": "prefixes_short",
                "(100, 500]": "prefixes_longer",
                "(500, inf]": "prefixes_long",
            }
        ),
        LENGTHS,
        Open("the unit of length", "words"),
    ),
    Experiment(
        id="prefixkv:table10",
        paper=PAPER,
        where="Table 10",
        shows="Tolerance of the search.",
        models=SEVEN,
        data=MM_VET,
        metric="average steps, perplexity",
        budgets="50%",
        parts=(
            _mm_vet(
                10,
                "tolerance of the search",
                tuple(
                    Arm(name=f"delta {d}", spec=f"{ONLINE},delta={d}")
                    for d in ("0.0125", "0.025", "0.05", "0.075", "0.1")
                ),
                ("50%",),
            ),
            Probe(
                models=SEVEN,
                measure=Searches(
                    budgets=("50%",),
                    deltas=("0.0125", "0.025", "0.05", "0.075", "0.1"),
                    steps="prefixkv_table10",
                ),
                each=("mm_vet",),
            ),
        ),
        open_=(WEIGHTS_OPEN, Open("samples", "steps of the first 100")),
        departs=(PUBLIC,),
    ),
    _analysis(
        11,
        "Steps of the search.",
        tuple(Arm(name=f"{n} steps", spec=f"{ONLINE},steps={n}") for n in range(7, 13)),
        {},
        Open("budget", "50%, as Table 10"),
        budgets=("50%",),
    ),
    _analysis(
        12,
        "Evicting, or merging by position or by feature.",
        (
            FULL,
            *(
                Arm(name=name, spec=f"{OURS.spec},merging={merging}")
                for name, merging in (
                    ("PrefixKV", "none"),
                    ("Position", "position"),
                    ("Feature", "feature"),
                )
            ),
        ),
        ESTIMATED,
        Open("what values are matched by", "the keys"),
    ),
    Experiment(
        id="prefixkv:fig5",
        paper=PAPER,
        where="Figure 5",
        shows="How far the features of answer tokens are from the full cache's.",
        models=SEVEN,
        data="100 random samples (L240)",
        metric="mean absolute error by layer",
        budgets="50%",
        parts=(
            View(
                models=SEVEN,
                each=("mm_vet",),
                charts=("Error of the features",),
                policies=tuple(
                    arm.spec.replace("{B}", "50%").replace(",profile={prefixes}", "")
                    for arm in (LOCAL, H2O, ELASTIC, OURS)
                ),
            ),
        ),
        open_=(
            Open('which methods "others" are', "Local, H2O, Elastic"),
            Open("what a feature is", "the hidden state after a layer"),
            FIRST,
            UNREADABLE,
        ),
    ),
    Experiment(
        id="prefixkv:table13",
        paper=PAPER,
        where="Table 13",
        shows="Another model.",
        models=("qwen-vl",),
        data=MM_VET,
        metric="perplexity",
        budgets=", ".join(BUDGETS),
        parts=(
            Grid(
                title="Table 13: Qwen-VL, MM-Vet",
                models=("qwen-vl",),
                arms=(*BASELINES, OURS),
                across=(PPL,),
                budgets=BUDGETS,
                figures="prefixkv_table13",
                samples=100,
            ),
        ),
        calibrations=ESTIMATED,
    ),
    Experiment(
        id="prefixkv:table14-longbench",
        paper=PAPER,
        where="Table 14, LongBench",
        shows="A language model on long texts.",
        models=("llama-3-8b",),
        data="LongBench",
        metric="mean over sets",
        budgets="128",
        parts=(
            _longbench(
                "table14-longbench",
                "Table 14: LongBench",
                (*LLM_BASELINES, LLM_OURS),
                ("128",),
            ),
        ),
        open_=LLM_OPEN,
        calibrations=LLM_ESTIMATED,
    ),
    Experiment(
        id="prefixkv:table14-needle",
        paper=PAPER,
        where="Table 14, needle",
        shows="A line in a long text, at all depths.",
        models=("llama-3-8b",),
        data="Needle in a Haystack",
        metric="lines found, %",
        budgets="128",
        parts=(
            Grid(
                title="Table 14: needle in a haystack",
                models=("llama-3-8b",),
                arms=(*LLM_BASELINES, LLM_OURS),
                across=(Column(name="Needle", tasks=(NEEDLES,)),),
                budgets=("128",),
                figures="prefixkv_table14-needle",
            ),
        ),
        open_=(
            Open("lengths and depths", "1,000, 2,000, 4,000 and 7,500 tokens; ten depths"),
            Open("the needle, and how answers are scored", "one of foveate's own; words found"),
            LLM_OPEN[2],
        ),
        calibrations=LLM_ESTIMATED,
    ),
    Experiment(
        id="prefixkv:table15",
        paper=PAPER,
        where="Table 15",
        shows="Fewer tokens, or fewer bits.",
        models=("llama-3-8b",),
        data="LongBench",
        metric="mean over sets",
        budgets="12.5%, 25%, 50%",
        parts=(
            _longbench(
                "table15",
                "Table 15: LongBench",
                (
                    FULL,
                    Arm(name="KIVI", spec="kivi:bits=2", budgets=("12.5%",)),
                    Arm(name="KIVI", spec="kivi:bits=4", budgets=("25%",)),
                    Arm(name="KIVI", spec="kivi:bits=8", budgets=("50%",)),
                    LLM_OURS,
                ),
                ("12.5%", "25%", "50%"),
            ),
        ),
        open_=(
            *LLM_OPEN,
            Open("bits of each budget", "2, 4 and 8 of 16"),
            Open("KIVI's groups and residual", "32 and 128, as its authors' code"),
        ),
        calibrations=LLM_ESTIMATED,
    ),
    Experiment(
        id="prefixkv:text-kivi-combo",
        paper=PAPER,
        where="section 4, text (L246)",
        shows="Fewer tokens and fewer bits.",
        models=("llama-3-8b",),
        data="LongBench",
        metric="mean over sets",
        budgets="3.125%",
        parts=(
            _longbench(
                "text-kivi-combo",
                "Section 4: PrefixKV with KIVI, LongBench",
                (
                    Arm(
                        name="PrefixKV + KIVI, 4 bits",
                        spec="prefixkv(distance=25)+kivi(bits=4):budget=12.5%",
                        budgets=("3.125%",),
                    ),
                ),
                ("3.125%",),
            ),
        ),
        open_=(
            *LLM_OPEN[:2],
            Open("what is cut to 3.125%", "a quarter of the bits of 12.5% of the tokens"),
        ),
    ),
    Experiment(
        id="prefixkv:table16",
        paper=PAPER,
        where="Table 16",
        shows="Several rounds of questions, and long answers.",
        models=SEVEN,
        data="sets that the authors built (L434)",
        metric="perplexity",
        budgets="50%",
        parts=(
            Grid(
                title="Table 16: rounds of questions, long texts",
                models=SEVEN,
                arms=(*BASELINES, OURS),
                across=(
                    Column(name="Multi-round", tasks=("llava_instruct",), value="PPL"),
                    Column(name="Long text", tasks=("llava_description",), value="PPL"),
                ),
                budgets=("50%",),
                figures="prefixkv_table16",
                samples=1000,
            ),
        ),
        cannot="the two sets were built by the authors and not released (L434); LLaVA-1.5's "
        "conversations and LLaVA-Description stand in their place.",
        calibrations=ESTIMATED,
    ),
    Experiment(
        id="prefixkv:table17",
        paper=PAPER,
        where="Table 17",
        shows="Images of high resolution.",
        models=("llava-next-7b",),
        data=MM_VET,
        metric="perplexity",
        budgets="50%",
        parts=(
            Grid(
                title="Table 17: LLaVA-NeXT-7B, MM-Vet",
                models=("llava-next-7b",),
                arms=(*BASELINES, OURS),
                across=(PPL,),
                budgets=("50%",),
                figures="prefixkv_table17",
                samples=100,
            ),
        ),
        calibrations=ESTIMATED,
    ),
    Experiment(
        id="prefixkv:fig6",
        paper=PAPER,
        where="Figure 6",
        shows="Sizes of Qwen-VL's layers. The text: a W (L448).",
        models=("qwen-vl",),
        data="10 random samples (L437)",
        metric="share of tokens by layer",
        budgets="50%",
        parts=(
            Probe(
                models=("qwen-vl",),
                measure=Searches(budgets=("50%",)),
                each=("mm_vet",),
                samples=10,
            ),
        ),
        open_=(Open("which samples", "the first 10 of MM-Vet"), UNREADABLE),
    ),
)
FACTS = (
    Facts(
        id="prefixkv:tables18-22",
        paper=PAPER,
        where="Tables 18 to 22",
        shows="Sample chats of LLaVA-1.5-7B at 20%, to be read: no figure is measured.",
        columns=("table", "lines of the text", "what is asked of"),
        rows=(
            ("18", "439-446", "an image that the text does not hold"),
            ("19", "454-461", "an image that the text does not hold"),
            ("20", "463-470", "an image that the text does not hold"),
            ("21", "472-479", "an image that the text does not hold"),
            ("22", "481-488", "an image that the text does not hold"),
        ),
    ),
)
