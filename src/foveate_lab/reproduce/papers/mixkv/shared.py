"""MixKV's base methods, with it and without, and the image sets: what its experiments share."""

from __future__ import annotations

from foveate.methods.mixkv import mixkv
from foveate_lab.reproduce.calibrations import CalibrationRun
from foveate_lab.reproduce.experiment import Open, Reproduced
from foveate_lab.reproduce.published import PublishedProfile
from foveate_lab.reproduce.trials import Arm, Column, GridTrial, columns

PAPER = Reproduced(
    method=mixkv,
    name="MixKV",
    open_=(
        Open("prompts, splits and answer lengths", "those of foveate's benchmarks"),
        Open("decoding", "greedy"),
        Open(
            "pooling, and what the base methods are set to",
            "window 32, kernel 5 and average pooling in every spec, as the authors' code; "
            "PyramidKV's slope 20, AdaKV's floor 0.2, SparseMM's share 0.1",
        ),
        Open(
            "whether a budget is that of each head or their mean", "the mean over heads and layers"
        ),
        Open(
            "the keys that eq. 4 averages, and query heads of one KV head", "all keys; their mean"
        ),
        Open("hardware, number type and attention backend", "yours"),
        Open("seeds and number of runs", "seed 0, one run"),
    ),
)
MIX = "window=32,kernel=5,pool=avg"
FULL = Arm(name="Full KV", spec="full")
SNAPKV = (
    Arm(name="SnapKV", spec=f"snapkv:budget={{B}},{MIX}"),
    Arm(name="SnapKV + MixKV", spec=f"mixkv:budget={{B}},{MIX}", over="SnapKV"),
)
PYRAMIDKV = (
    Arm(name="PyramidKV", spec=f"pyramidkv:budget={{B}},beta=20,{MIX}"),
    Arm(
        name="PyramidKV + MixKV",
        spec=f"mixkv({MIX})+pyramidkv:budget={{B}},beta=20",
        over="PyramidKV",
    ),
)
ADAKV = (
    Arm(name="AdaKV", spec=f"adakv:budget={{B}},floor=0.2,normalised=true,{MIX}"),
    Arm(
        name="AdaKV + MixKV",
        spec=f"mixkv({MIX})+adakv:budget={{B}},floor=0.2,normalised=true",
        over="AdaKV",
    ),
)
NOT_INTERNVL = ("llava-next-mistral-7b", "qwen2-vl-7b")
MEASURED = ", scores measured here"
SPARSEMM = tuple(
    Arm(
        name=f"{name}{where}",
        spec=spec.replace("{S}", f"{{{scores}}}"),
        models=NOT_INTERNVL,
        over=f"SparseMM{where}" if "MixKV" in name else "",
    )
    for where, scores in (("", "published_sparsemm"), (MEASURED, "sparsemm"))
    for name, spec in (
        ("SparseMM", f"sparsemm:budget={{B}},profile={{S}},{MIX}"),
        ("SparseMM + MixKV", f"mixkv({MIX})+sparsemm(profile={{S}}):budget={{B}}"),
    )
)
SCORES: dict[str, CalibrationRun | PublishedProfile] = {
    "sparsemm": CalibrationRun(method="sparsemm", samples=100),
    "published_sparsemm": PublishedProfile(
        method="sparsemm",
        files={"llava-next-mistral-7b": "llava-mistral-v1.6.json", "qwen2-vl-7b": "qwen.json"},
        source="visual_head/head_score/ of https://github.com/CR400AF-A/SparseMM",
    ),
}
REDUNDANCIES = {
    "published_weights": PublishedProfile(
        method="mixkv",
        files={"qwen2-vl-7b": "qwen_kv_similarity.json"},
        source="visual_head/head_score/ of https://github.com/xuyang-liu16/MixKV",
    )
}
SPARSEMM_OPEN = Open(
    "which of the published head scores SparseMM has (L244)",
    "those of its repository, if they are brought; in lines of their own such as are measured here "
    "on a hundred drawn documents (foveate calibrate sparsemm)",
)
IMAGE_SETS = (
    *columns(
        {
            "DocVQA": "docvqa",
            "OCRBench": "ocrbench",
            "TextVQA": "textvqa",
            "ChartQA": "chartqa",
        }
    ),
    Column(name="TextCaps", tasks=("textcaps",), value="score"),
)
METRICS = "ANLS, right answers, VQA accuracy, relaxed accuracy (%), CIDEr"
METRICS_OPEN = Open("metrics and samples of the image sets", f"{METRICS}; all of each split")
IMAGES = "DocVQA val, OCRBench, TextVQA val, ChartQA test, TextCaps val"
CUT = 31_500
CUT_OPEN = Open("where long texts are cut", "31,500 tokens, the middle left out, as LongBench does")


def image_table(number: int, arms: tuple[Arm, ...], budgets: tuple[str, ...]) -> GridTrial:
    """Arms on all image sets."""
    return GridTrial(
        title=f"Table {number}: five image sets",
        arms=arms,
        across=IMAGE_SETS,
        budgets=budgets,
        figures=f"mixkv_table{number}",
    )
