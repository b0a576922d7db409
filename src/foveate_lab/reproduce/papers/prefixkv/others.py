"""Other models, language models among them: tables 13 to 17, and figure 6."""

from __future__ import annotations

from dataclasses import replace

from foveate_lab.reproduce.experiment import UNREADABLE, Experiment, Open
from foveate_lab.reproduce.papers.longbench import LONGBENCH
from foveate_lab.reproduce.papers.prefixkv.shared import (
    ALL_OF_MM_VET,
    BASELINES,
    BUDGETS,
    ESTIMATE,
    ESTIMATED,
    FULL,
    MM_VET,
    OURS,
    PAPER,
    PPL,
    SEVEN,
)
from foveate_lab.reproduce.probes import Searches
from foveate_lab.reproduce.table import BUDGETS_ACROSS, METHODS_ACROSS
from foveate_lab.reproduce.trials import Arm, Column, GridTrial, Probe, columns

CUT = 7_950
NEEDLES = "needle_grid(lengths=1000/2000/4000/7500)"
LLM_OPEN = (
    Open("where long texts are cut", "7,950 tokens, the middle left out, as PyramidKV does"),
    Open("which sets", "the 16 English ones"),
    Open("samples of the estimation for language models", "10 of LongBench's Qasper"),
)
LLM_SET_TO = Open(
    "settings of the baselines",
    "Local: four first tokens, the rest recent; H2O: half recent; Pyramid: slope 20, window 8, "
    "kernel 7, pooled by the largest",
)
LLM_ESTIMATED = {"text_prefixes": replace(ESTIMATE, task="longbench_qasper", longest_prompt=CUT)}
LLM_OURS = Arm(name="PrefixKV", spec="prefixkv:budget={B},profile={text_prefixes},distance=25")
LLM_BASELINES = (
    FULL,
    Arm(name="Local", spec="streaming_llm:budget={B},sinks=4"),
    Arm(name="H2O", spec="h2o:budget={B},recent=0.5"),
    Arm(name="Pyramid", spec="pyramidkv:budget={B},beta=20,window=8,kernel=7,pool=max"),
)


def _longbench(name: str, title: str, arms: tuple[Arm, ...], budgets: tuple[str, ...]) -> GridTrial:
    """All sets beside their mean, which is what the paper prints."""
    return GridTrial(
        title=title,
        arms=arms,
        across=columns(LONGBENCH),
        budgets=budgets,
        figures=f"prefixkv_{name}",
        average="LongBench",
        prompt=CUT,
        layout=METHODS_ACROSS if len(budgets) == 1 else BUDGETS_ACROSS,
    )


EXPERIMENTS = (
    Experiment(
        id="prefixkv:table13",
        of=PAPER,
        where="Table 13",
        shows="Another model.",
        models=("qwen-vl",),
        data=MM_VET,
        metric="perplexity",
        budgets=", ".join(BUDGETS),
        trial=GridTrial(
            title="Table 13: Qwen-VL, MM-Vet",
            arms=(*BASELINES, OURS),
            across=(PPL,),
            budgets=BUDGETS,
            figures="prefixkv_table13",
            samples=ALL_OF_MM_VET,
        ),
        calibrations=ESTIMATED,
    ),
    Experiment(
        id="prefixkv:table14-longbench",
        of=PAPER,
        where="Table 14, LongBench",
        shows="A language model on long texts.",
        models=("llama-3-8b",),
        data="LongBench",
        metric="mean over sets",
        budgets="128",
        trial=_longbench(
            "table14-longbench",
            "Table 14: LongBench",
            (*LLM_BASELINES, LLM_OURS),
            ("128",),
        ),
        open_=(*LLM_OPEN, LLM_SET_TO),
        calibrations=LLM_ESTIMATED,
    ),
    Experiment(
        id="prefixkv:table14-needle",
        of=PAPER,
        where="Table 14, needle",
        shows="A line in a long text, at all depths.",
        models=("llama-3-8b",),
        data="Needle in a Haystack",
        metric="lines found, %",
        budgets="128",
        trial=GridTrial(
            title="Table 14: needle in a haystack",
            arms=(*LLM_BASELINES, LLM_OURS),
            across=(Column(name="Needle", tasks=(NEEDLES,)),),
            budgets=("128",),
            figures="prefixkv_table14-needle",
            layout=METHODS_ACROSS,
        ),
        open_=(
            Open("lengths and depths", "1,000, 2,000, 4,000 and 7,500 tokens; ten depths"),
            Open("the needle, and how answers are scored", "one of foveate's own; words found"),
            LLM_OPEN[2],
            LLM_SET_TO,
        ),
        calibrations=LLM_ESTIMATED,
    ),
    Experiment(
        id="prefixkv:table15",
        of=PAPER,
        where="Table 15",
        shows="Fewer tokens, or fewer bits.",
        models=("llama-3-8b",),
        data="LongBench",
        metric="mean over sets",
        budgets="12.5%, 25%, 50%",
        trial=_longbench(
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
        open_=(
            *LLM_OPEN,
            Open("bits of each budget", "2, 4 and 8 of 16"),
            Open("KIVI's groups and residual", "32 and 128, as its authors' code"),
        ),
        calibrations=LLM_ESTIMATED,
    ),
    Experiment(
        id="prefixkv:text-kivi-combo",
        of=PAPER,
        where="section 4, text (L246)",
        shows="Fewer tokens and fewer bits.",
        models=("llama-3-8b",),
        data="LongBench",
        metric="mean over sets",
        budgets="3.125%",
        trial=_longbench(
            "text-kivi-combo",
            "Section 4: PrefixKV with KIVI, LongBench",
            (
                Arm(
                    name="PrefixKV + KIVI, 4 bits",
                    spec="prefixkv(distance=25,profile={eighth_prefixes})+kivi(bits=4):budget=12.5%",
                    budgets=("3.125%",),
                ),
            ),
            ("3.125%",),
        ),
        open_=(
            *LLM_OPEN[:2],
            LLM_OPEN[2],
            Open("what is cut to 3.125%", "a quarter of the bits of 12.5% of the tokens"),
        ),
        calibrations={
            "eighth_prefixes": replace(
                LLM_ESTIMATED["text_prefixes"],
                method="prefixkv:budget=12.5%",
                at_a_budget=False,
            )
        },
    ),
    Experiment(
        id="prefixkv:table16",
        of=PAPER,
        where="Table 16",
        shows="Several rounds of questions, and long answers.",
        models=SEVEN,
        data="sets that the authors built (L434)",
        metric="perplexity",
        budgets="50%",
        trial=GridTrial(
            title="Table 16: rounds of questions, long texts",
            arms=(*BASELINES, OURS),
            across=(
                Column(name="Multi-round", tasks=("llava_instruct",), value="PPL"),
                Column(name="Long text", tasks=("llava_description",), value="PPL"),
            ),
            budgets=("50%",),
            figures="prefixkv_table16",
            layout=METHODS_ACROSS,
            samples=1000,
        ),
        cannot="the two sets were built by the authors and not released (L434); LLaVA-1.5's "
        "conversations and LLaVA-Description stand in their place.",
        departs=(
            "rounds: the earlier ones of a conversation and its last question are one user turn, "
            "one below the other",
        ),
        calibrations=ESTIMATED,
    ),
    Experiment(
        id="prefixkv:table17",
        of=PAPER,
        where="Table 17",
        shows="Images of high resolution.",
        models=("llava-next-7b",),
        data=MM_VET,
        metric="perplexity",
        budgets="50%",
        trial=GridTrial(
            title="Table 17: LLaVA-NeXT-7B, MM-Vet",
            arms=(*BASELINES, OURS),
            across=(PPL,),
            budgets=("50%",),
            figures="prefixkv_table17",
            layout=METHODS_ACROSS,
            samples=ALL_OF_MM_VET,
        ),
        calibrations=ESTIMATED,
    ),
    Experiment(
        id="prefixkv:fig6",
        of=PAPER,
        where="Figure 6",
        shows="Sizes of Qwen-VL's layers. The text: a W (L448).",
        models=("qwen-vl",),
        data="10 random samples (L437)",
        metric="share of tokens by layer",
        budgets="50%",
        trial=Probe(
            measure=Searches(budgets=("50%",)),
            each=("mm_vet",),
            samples=10,
        ),
        open_=(Open("which samples", "the first 10 of MM-Vet"), UNREADABLE),
    ),
)
