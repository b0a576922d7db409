"""The search, its estimate and merging: tables 4 to 12, and figures 4 and 5."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf

from foveate_lab.reproduce.calibrations import CalibrationRun
from foveate_lab.reproduce.experiment import UNREADABLE, Experiment, Open
from foveate_lab.reproduce.papers.prefixkv.shared import (
    ALL_OF_MM_VET,
    BUDGETS,
    CONFIGURATIONS,
    ELASTIC,
    ESTIMATE,
    ESTIMATED,
    FIRST,
    FULL,
    H2O,
    LOCAL,
    MM_VET,
    ONLINE,
    OURS,
    PAPER,
    PPL,
    PUBLIC,
    PUBLISHED,
    PYRAMID,
    SEVEN,
)
from foveate_lab.reproduce.probes import Searches
from foveate_lab.reproduce.published import PublishedProfile
from foveate_lab.reproduce.table import BUDGETS_ACROSS, METHODS_ACROSS
from foveate_lab.reproduce.trials import Arm, GridTrial, Panels, Probe, ViewTrial


def _mm_vet(
    number: int, what: str, arms: tuple[Arm, ...], budgets: tuple[str, ...] = BUDGETS
) -> GridTrial:
    """Perplexity of LLaVA-1.5-7B on MM-Vet: the setting of all analyses (L164)."""
    return GridTrial(
        title=f"Table {number}: {what}, MM-Vet",
        arms=arms,
        across=(PPL,),
        budgets=budgets,
        figures=f"prefixkv_table{number}",
        samples=ALL_OF_MM_VET,
        layout=METHODS_ACROSS if len(budgets) == 1 else BUDGETS_ACROSS,
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
WEIGHTS_OPEN = Open("which weights the analyses measure", "those of the hub's LLaVA-1.5")


def _analysis(
    number: int,
    shows: str,
    arms: tuple[Arm, ...],
    calibrations: Mapping[str, CalibrationRun | PublishedProfile],
    *open_: Open,
    budgets: tuple[str, ...] = BUDGETS,
) -> Experiment:
    return Experiment(
        id=f"prefixkv:table{number}",
        of=PAPER,
        where=f"Table {number}",
        shows=shows,
        models=SEVEN,
        data=MM_VET,
        metric="perplexity",
        budgets=", ".join(budgets),
        trial=_mm_vet(number, shows.rstrip("."), arms, budgets),
        open_=(WEIGHTS_OPEN, *open_),
        departs=(PUBLIC,),
        calibrations=calibrations,
    )


EXPERIMENTS = (
    _analysis(
        4,
        "Same size for every layer, a pyramid, or prefixes.",
        (
            FULL,
            Arm(
                name="Same size for each layer",
                spec="prefixkv:budget=uniform(amount={B}),distance=25",
            ),
            PYRAMID,
            OURS,
            PUBLISHED,
        ),
        {**ESTIMATED, **CONFIGURATIONS},
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
        of=PAPER,
        where="Figure 4",
        shows="Sizes of layers, and their Gini coefficients, over 100 samples. The text: a W "
        "(L231).",
        models=SEVEN,
        data="100 random samples (L183)",
        metric="share of tokens by layer; Gini coefficient",
        budgets="50%",
        trial=Panels(
            panels=(
                Probe(measure=Searches(budgets=("50%",)), each=("mm_vet",)),
                ViewTrial(
                    each=("mm_vet",),
                    charts=("Gini coefficient of each layer",),
                ),
            )
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
        of=PAPER,
        where="Table 7",
        shows="How far layers' sizes spread over samples, and lie from the estimate.",
        models=SEVEN,
        data=MM_VET,
        metric="standard deviation, mean absolute difference",
        budgets=", ".join(BUDGETS),
        trial=Probe(
            measure=Searches(budgets=BUDGETS, spread="prefixkv_table7"),
            each=("mm_vet",),
            samples=None,
            estimate="prefixes",
        ),
        open_=(Open("unit, and the mean over layers", "share of the prompt's tokens; all alike"),),
        calibrations=ESTIMATED,
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
        of=PAPER,
        where="Table 10",
        shows="Tolerance of the search.",
        models=SEVEN,
        data=MM_VET,
        metric="average steps, perplexity",
        budgets="50%",
        trial=Panels(
            panels=(
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
                    measure=Searches(
                        budgets=("50%",),
                        deltas=("0.0125", "0.025", "0.05", "0.075", "0.1"),
                        steps="prefixkv_table10",
                    ),
                    each=("mm_vet",),
                ),
            )
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
            OURS,
            *(
                Arm(name=name, spec=f"{OURS.spec},merging={name.lower()}")
                for name in ("Position", "Feature")
            ),
        ),
        ESTIMATED,
        Open("what values are matched by", "the keys"),
    ),
    Experiment(
        id="prefixkv:fig5",
        of=PAPER,
        where="Figure 5",
        shows="How far the features of answer tokens are from the full cache's.",
        models=SEVEN,
        data="100 random samples (L240)",
        metric="mean absolute error by layer",
        budgets="50%",
        trial=ViewTrial(
            each=("mm_vet",),
            charts=("Error of the features",),
            policies=tuple(
                arm.spec.replace("{B}", "50%").replace(",profile={prefixes}", "")
                for arm in (LOCAL, H2O, ELASTIC, OURS)
            ),
        ),
        open_=(
            Open('which methods "others" are', "Local, H2O, Elastic"),
            Open("what a feature is", "the hidden state after a layer"),
            FIRST,
            UNREADABLE,
        ),
    ),
)
