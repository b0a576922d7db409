"""The methods compared: tables 1 to 3."""

from __future__ import annotations

from foveate_lab.reproduce.experiment import Experiment, Open
from foveate_lab.reproduce.papers.longbench import LONGBENCH
from foveate_lab.reproduce.papers.mixkv.shared import (
    ADAKV,
    CUT,
    CUT_OPEN,
    FULL,
    IMAGES,
    METRICS,
    METRICS_OPEN,
    PAPER,
    PYRAMIDKV,
    SCORES,
    SNAPKV,
    SPARSEMM,
    SPARSEMM_OPEN,
    image_table,
)
from foveate_lab.reproduce.table import BUDGET_BLOCKS
from foveate_lab.reproduce.trials import Column, GridTrial, columns

PIXELS = "min_pixels=2000000,max_pixels=4800000"  # as the authors' code
SCREENS = {
    screen: f"screenspot_v2(screen={screen},{PIXELS})" for screen in ("mobile", "desktop", "web")
}

EXPERIMENTS = (
    Experiment(
        id="mixkv:table1",
        of=PAPER,
        where="Table 1",
        shows="Four base methods, alone and with MixKV, on five image sets.",
        models=("llava-next-mistral-7b", "internvl3-8b", "qwen2-vl-7b"),
        data=IMAGES,
        metric=METRICS,
        budgets="256, 128, 64",
        trial=image_table(
            1,
            (FULL, *SNAPKV, *PYRAMIDKV, *ADAKV, *SPARSEMM),
            ("256", "128", "64"),
        ),
        open_=(METRICS_OPEN, SPARSEMM_OPEN),
        calibrations=SCORES,
    ),
    Experiment(
        id="mixkv:table2",
        of=PAPER,
        where="Table 2",
        shows="Grounding of instructions on screens.",
        models=("qwen2.5-vl-7b",),
        data="ScreenSpot-v2, three platforms, text and icons",
        metric="clicks inside the box, %",
        budgets="128, 64",
        trial=GridTrial(
            title="Table 2: ScreenSpot-v2",
            arms=(FULL, *SNAPKV, *PYRAMIDKV, *ADAKV),
            across=(
                *(
                    Column(
                        name=f"{screen.title()} {kind}",
                        tasks=(SCREENS[screen],),
                        label="type",
                        part=(part,),
                    )
                    for screen in SCREENS
                    for kind, part in (("Text", "text"), ("Icon/Widget", "icon"))
                ),
                Column(name="Average", tasks=tuple(SCREENS.values())),
            ),
            budgets=("128", "64"),
            figures="mixkv_table2",
        ),
        open_=(
            Open('what "average precision" is', "the share of clicks inside the box"),
            Open("the average", "over all samples, as the benchmark's authors"),
            Open("prompt and pixels", "those of the authors' code: 2,000,000 to 4,800,000 pixels"),
            Open("the full cache's line, which has 5 of 7 values", "nothing to compare with"),
        ),
    ),
    Experiment(
        id="mixkv:table3",
        of=PAPER,
        where="Table 3",
        shows="Language models on long texts.",
        models=("mistral-7b-v0.2", "llama-3.1-8b"),
        data="LongBench, 16 English sets",
        metric="LongBench's of each set",
        budgets="1024, 512",
        trial=GridTrial(
            title="Table 3: LongBench",
            arms=(FULL, *SNAPKV, *ADAKV),
            across=columns(LONGBENCH),
            budgets=("1024", "512"),
            figures="mixkv_table3",
            average="Avg.",
            prompt=CUT,
            layout=BUDGET_BLOCKS,
        ),
        open_=(
            CUT_OPEN,
            Open("names of the columns, which are garbled", "LongBench's, in its order"),
        ),
    ),
)
