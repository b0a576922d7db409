"""PrefixKV and what it is compared with, and its estimates: what its experiments share."""

from __future__ import annotations

from foveate.methods.prefixkv import prefixkv
from foveate_lab.reproduce.calibrations import CalibrationRun
from foveate_lab.reproduce.experiment import Open, Reproduced
from foveate_lab.reproduce.published import PublishedProfile
from foveate_lab.reproduce.trials import Arm, Column

PAPER = Reproduced(
    method=prefixkv,
    name="PrefixKV",
    open_=(
        Open("tolerance of the search by default", "none: it goes on to the budget"),
        Open("distance at which decoding prunes", "25 tokens, as the authors' code"),
        Open("first and last tokens that are always kept", "one each"),
        Open(
            "prompts, answer lengths and pixels",
            "those of foveate's benchmarks; 1,024 tokens, the image behind MM-Vet's question, as "
            "the authors' code",
        ),
        Open("samples of MM-Vet", "all 218, as the authors' commands ask for"),
        Open("the answer whose perplexity is measured on MM-Vet", "the benchmark's"),
        Open(
            "settings of the baselines",
            "H2O: last token, the rest by attention; Local: first token, the rest recent; Elastic: "
            "one anchor each; Pyramid: slope 20, in the same-size baseline (L178)",
            method="elastic_cache",  # which stands wherever these do
        ),
        Open("seeds and number of runs", "seed 0, one run"),
        Open("number type", "that of the weights"),
    ),
)
SEVEN, BOTH = ("llava-1.5-7b",), ("llava-1.5-7b", "llava-1.5-13b")
BUDGETS = tuple(f"{number}0%" for number in range(1, 10))
ESTIMATE = CalibrationRun(method="prefixkv", task="llava_instruct", samples=10, at_a_budget=True)
ESTIMATED = {"prefixes": ESTIMATE}
WEIGHTS = (
    "the paper does not name the weights that it retrained without LLaVA-Description (L143). Its "
    "code's README links https://huggingface.co/Zuyan/ElasticCache/tree/main/llava-v1.5-7b, with a "
    "13B beside it, in the authors' layout (foveate convert reads it), and does not say whether it "
    "is those"
)
PUBLIC = f"the hub's LLaVA-1.5, which has seen LLaVA-Description: {WEIGHTS}"
SAMPLED = (
    "the uncompressed ROUGE compares one greedy answer with itself, and so is 1: the paper "
    "compares two draws at temperature 0.2 (L145)"
)
CONFIGURATIONS = {
    "published_prefixes": PublishedProfile(
        method="prefixkv",
        files={
            model: f"prefixkv_{model.replace('llava-', 'llava-v')}_{{F}}.json" for model in BOTH
        },
        source="confs/ of https://github.com/THU-MIG/PrefixKV",
        at_a_budget=True,
    )
}
PUBLISHED = Arm(
    name="PrefixKV, the authors' configuration",
    spec="prefixkv:budget={B},profile={published_prefixes},distance=25",
)
FULL = Arm(name="Full cache", spec="full")
LOCAL = Arm(name="Local", spec="streaming_llm:budget={B},sinks=1,when=over_budget(growing=true)")
H2O = Arm(name="H2O", spec="h2o:budget={B},recent=1,when=over_budget(growing=true)")
ELASTIC = Arm(name="Elastic", spec="elastic_cache:budget={B},distance=25")
PYRAMID = Arm(  # within the same-size baseline, as L178 says: Table 2's row is Table 4's
    name="Pyramid", spec="prefixkv:budget=pyramid(amount={B},beta=20),distance=25", models=SEVEN
)
OURS = Arm(name="PrefixKV", spec="prefixkv:budget={B},profile={prefixes},distance=25")
ONLINE = "prefixkv:budget={B},distance=25"
BASELINES = (FULL, LOCAL, H2O, ELASTIC)
PPL = Column(name="PPL", tasks=("mm_vet",), value="PPL")
MM_VET, ALL_OF_MM_VET = "MM-Vet", 218
FIRST = Open("which samples", "the first 100 of MM-Vet")
