"""MixKV: Mixing Importance with Diversity (arXiv:2510.20707)."""

from __future__ import annotations

from foveate.reproduce.calibrations import Calibration
from foveate.reproduce.experiment import Experiment, Open, Paper
from foveate.reproduce.parts import Arm, Column, Grid, Latency, Probe, columns
from foveate.reproduce.probes import Coverage, KeyMap, Similarity

PAPER = Paper(
    name="MixKV",
    title="Mixing Importance with Diversity: Joint Optimization for KV Cache Compression in Large "
    "Vision-Language Models",
    arxiv="2510.20707",
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
    Arm(name="SnapKV + MixKV", spec=f"mixkv:budget={{B}},{MIX}"),
)
PYRAMIDKV = (
    Arm(name="PyramidKV", spec=f"pyramidkv:budget={{B}},beta=20,{MIX}"),
    Arm(name="PyramidKV + MixKV", spec=f"mixkv({MIX})+pyramidkv:budget={{B}},beta=20"),
)
ADAKV = (
    Arm(name="AdaKV", spec=f"adakv:budget={{B}},floor=0.2,normalised=true,{MIX}"),
    Arm(name="AdaKV + MixKV", spec=f"mixkv({MIX})+adakv:budget={{B}},floor=0.2,normalised=true"),
)
NOT_INTERNVL = ("llava-next-mistral-7b", "qwen2-vl-7b")
SPARSEMM = (
    Arm(
        name="SparseMM",
        spec=f"sparsemm:budget={{B}},profile={{sparsemm}},{MIX}",
        models=NOT_INTERNVL,
    ),
    Arm(
        name="SparseMM + MixKV",
        spec=f"mixkv({MIX})+sparsemm(profile={{sparsemm}}):budget={{B}}",
        models=NOT_INTERNVL,
    ),
)
SCORES = {"sparsemm": Calibration(method="sparsemm", samples=100)}
SPARSEMM_OPEN = Open(
    "where SparseMM's head scores come from",
    "measured on a hundred drawn documents (foveate calibrate sparsemm)",
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
LONGBENCH = {
    "NrtvQA": "longbench_narrativeqa",
    "Qasper": "longbench_qasper",
    "MF-en": "longbench_multifieldqa_en",
    "HotpotQA": "longbench_hotpotqa",
    "2WikiMQA": "longbench_2wikimqa",
    "Musique": "longbench_musique",
    "GovReport": "longbench_gov_report",
    "QMSum": "longbench_qmsum",
    "MultiNews": "longbench_multi_news",
    "TREC": "longbench_trec",
    "TriviaQA": "longbench_triviaqa",
    "SAMSum": "longbench_samsum",
    "PCount": "longbench_passage_count",
    "PRe": "longbench_passage_retrieval_en",
    "LCC": "longbench_lcc",
    "RB-P": "longbench_repobench-p",
}
SCREENS = {screen: f"screenspot_v2(screen={screen})" for screen in ("mobile", "desktop", "web")}
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
    Arm(name="HeadKV + MixKV", spec=f"mixkv({MIX})+headkv(profile={{headkv}}):budget={{B}}"),
)
HEAD_SCORES = {"headkv": Calibration(method="headkv", samples=100)}
HEADKV_OPEN = Open(
    "HeadKV's variant, beta and head scores",
    "R2; 1.01; measured on a hundred lines hidden in a text",
)
CUT = 31_500
CUT_OPEN = Open("where long texts are cut", "31,500 tokens, the middle left out, as LongBench does")


def _image_table(
    number: int, models: tuple[str, ...], arms: tuple[Arm, ...], budgets: tuple[str, ...]
) -> Grid:
    return Grid(
        title=f"Table {number}: five image sets",
        models=models,
        arms=arms,
        across=IMAGE_SETS,
        budgets=budgets,
        figures=f"mixkv_table{number}",
    )


def _ablated(mixes: dict[str, str]) -> tuple[Arm, ...]:
    """What is ablated, over each of three base methods. {M} is where MixKV's arguments go."""
    bases = {
        "SnapKV": f"mixkv:budget={{B}},{{M}},{MIX}",
        "AdaKV": f"mixkv({{M}},{MIX})+adakv:budget={{B}},floor=0.2,normalised=true",
        "SparseMM": f"mixkv({{M}},{MIX})+sparsemm(profile={{sparsemm}}):budget={{B}}",
    }
    return tuple(
        Arm(name=f"{base}, {name}", spec=spec.replace("{M}", mix))
        for name, mix in mixes.items()
        for base, spec in bases.items()
    )


EXTRINSIC = {"extrinsic": "mix=importance,intrinsic=none"}
IMPORTANCE = _ablated(
    {
        **EXTRINSIC,
        "extrinsic + KNorm": "mix=importance,intrinsic=key",
        "extrinsic + VNorm": "mix=importance,intrinsic=value",
    }
)
MIXING = _ablated(
    {
        **EXTRINSIC,
        "diversity": "mix=diversity",
        "importance + diversity": "mix=sum",
        "offline head weights": "mix=headwise,profile={weights}",
        "online head weights": "mix=headwise",
    }
)
ABLATED = ("llava-next-mistral-7b", "qwen2-vl-7b")
KEPT = (f"snapkv:budget=64,{MIX}", f"mixkv:budget=64,{MIX}")
COST_OPEN = (
    Open("the prompt", "prose, whose middle half counts as visual"),
    Open("batch, answer length and warm-up", "one prompt, 64 tokens, one round before three"),
)
NO_BARS = Open("what the bars are", "no number of them is in the text: measured ones stand alone")
UNREADABLE = Open("plotted values", "none is in the text: drawn, with nothing to compare with")


def _latency(title: str, arms: tuple[Arm, ...], budgets: tuple[str, ...]) -> Latency:
    return Latency(title=title, models=("qwen2-vl-7b",), arms=arms, budgets=budgets, tokens=32_000)


EXPERIMENTS = (
    Experiment(
        id="mixkv:fig1a",
        paper=PAPER,
        where="Figure 1 (a)",
        shows="How alike the keys of one head are, in a language and in a vision-language model.",
        models=("qwen2-7b", "qwen2-vl-7b"),
        data="LongBench for Qwen2, OCRBench for Qwen2-VL",
        metric="cosine similarity of keys",
        budgets="none",
        parts=(
            Probe(
                models=("qwen2-7b", "qwen2-vl-7b"),
                measure=KeyMap(),
                given={"qwen2-7b": ("longbench_qasper",), "qwen2-vl-7b": ("ocrbench",)},
                samples=1,
            ),
        ),
        open_=(
            Open("samples, layer and head", "the first, the middle layer, its first head"),
            UNREADABLE,
        ),
    ),
    Experiment(
        id="mixkv:fig1b",
        paper=PAPER,
        where="Figure 1 (b)",
        shows="How alike keys and values are in all heads. The text: keys of Qwen2 peak at 0.2 to "
        "0.4, those of Qwen2-VL at 0.6 to 0.8, two to three times as high (L62).",
        models=("qwen2-7b", "qwen2-vl-7b"),
        data="LongBench for Qwen2, OCRBench for Qwen2-VL",
        metric="mean cosine similarity by head",
        budgets="none",
        parts=(
            Probe(
                models=("qwen2-7b", "qwen2-vl-7b"),
                measure=Similarity(),
                given={"qwen2-7b": ("longbench_qasper",), "qwen2-vl-7b": ("ocrbench",)},
            ),
        ),
        open_=(Open("samples and bins", "100, 20 bins, a key's pair with itself left out"),),
    ),
    Experiment(
        id="mixkv:fig2",
        paper=PAPER,
        where="Figure 2",
        shows="How alike the keys of every head are, across benchmarks. The text: heads of "
        "Qwen2-VL-7B above 0.9 and below 0.3 (L64).",
        models=("llava-next-mistral-7b", "qwen2-vl-7b"),
        data="100 samples of each benchmark (L853)",
        metric="mean cosine similarity by head",
        budgets="none",
        parts=(
            Probe(
                models=("llava-next-mistral-7b", "qwen2-vl-7b"),
                measure=Similarity(),
                each=("docvqa", "ocrbench", "textvqa", "chartqa", "textcaps"),
            ),
        ),
        open_=(Open("which benchmarks, and which samples", "the five image sets, the first 100"),),
    ),
    Experiment(
        id="mixkv:fig3",
        paper=PAPER,
        where="Figure 3",
        shows="Where kept keys lie among all keys, under SnapKV and with MixKV.",
        models=("qwen2-vl-7b",),
        data="one sample of TextVQA (L857)",
        metric="two dimensions: t-SNE (L208) and principal components (L857)",
        budgets="64",
        parts=(
            Probe(
                models=("qwen2-vl-7b",),
                measure=Coverage(policies=KEPT, layer=23, head=3),
                each=("textvqa",),
                samples=1,
            ),
        ),
        open_=(
            Open("budget", "64"),
            Open("t-SNE or principal components (text and appendix differ)", "both"),
            Open("sample, perplexity and seed", "the first, 30, 0"),
            UNREADABLE,
        ),
    ),
    Experiment(
        id="mixkv:fig7",
        paper=PAPER,
        where="Figure 7",
        shows="More views like Figure 3.",
        models=("qwen2-vl-7b",),
        data="three samples of TextVQA",
        metric="two dimensions",
        budgets="64",
        parts=(
            Probe(
                models=("qwen2-vl-7b",),
                measure=Coverage(policies=KEPT, layer=14, head=1, by_modality=True),
                each=("textvqa",),
                samples=3,
            ),
        ),
        cannot="there is a caption and nothing else: neither model, data, layer, head nor budget "
        "is named; drawn as Figure 3 of another head, text and image tokens apart.",
    ),
    Experiment(
        id="mixkv:table1",
        paper=PAPER,
        where="Table 1",
        shows="Four base methods, alone and with MixKV, on five image sets.",
        models=("llava-next-mistral-7b", "internvl3-8b", "qwen2-vl-7b"),
        data=IMAGES,
        metric=METRICS,
        budgets="256, 128, 64",
        parts=(
            _image_table(
                1,
                ("llava-next-mistral-7b", "internvl3-8b", "qwen2-vl-7b"),
                (FULL, *SNAPKV, *PYRAMIDKV, *ADAKV, *SPARSEMM),
                ("256", "128", "64"),
            ),
        ),
        open_=(METRICS_OPEN, SPARSEMM_OPEN),
        calibrations=SCORES,
    ),
    Experiment(
        id="mixkv:table2",
        paper=PAPER,
        where="Table 2",
        shows="Grounding of instructions on screens.",
        models=("qwen2.5-vl-7b",),
        data="ScreenSpot-v2, three platforms, text and icons",
        metric="clicks inside the box, %",
        budgets="128, 64",
        parts=(
            Grid(
                title="Table 2: ScreenSpot-v2",
                models=("qwen2.5-vl-7b",),
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
        ),
        open_=(
            Open('what "average precision" is', "the share of clicks inside the box"),
            Open("the average", "over all samples, as the benchmark's authors"),
            Open("prompt and pixels", "the model's own prompt for boxes; its processor's bounds"),
            Open("the full cache's line, which has 5 of 7 values", "nothing to compare with"),
        ),
    ),
    Experiment(
        id="mixkv:table3",
        paper=PAPER,
        where="Table 3",
        shows="Language models on long texts.",
        models=("mistral-7b-v0.2", "llama-3.1-8b"),
        data="LongBench, 16 English sets",
        metric="LongBench's of each set",
        budgets="1024, 512",
        parts=(
            Grid(
                title="Table 3: LongBench",
                models=("mistral-7b-v0.2", "llama-3.1-8b"),
                arms=(FULL, *SNAPKV, *ADAKV),
                across=columns(LONGBENCH),
                budgets=("1024", "512"),
                figures="mixkv_table3",
                average="Avg.",
                prompt=CUT,
            ),
        ),
        open_=(
            CUT_OPEN,
            Open("names of the columns, which are garbled", "LongBench's, in its order"),
        ),
    ),
    Experiment(
        id="mixkv:table4-importance",
        paper=PAPER,
        where="Table 4, importance",
        shows="Extrinsic importance alone, and with the norm of keys or of values.",
        models=ABLATED,
        data=IMAGES,
        metric=METRICS,
        budgets="64",
        parts=(
            Grid(
                title="Table 4: what importance is made of",
                models=ABLATED,
                arms=IMPORTANCE,
                across=IMAGE_SETS,
                budgets=("64",),
                figures="mixkv_table4-importance",
            ),
        ),
        open_=(
            METRICS_OPEN,
            SPARSEMM_OPEN,
            Open("sign and scale of the norm of keys", "minus the norm, scaled as that of values"),
        ),
        calibrations=SCORES,
    ),
    Experiment(
        id="mixkv:table4-mixing",
        paper=PAPER,
        where="Table 4, mixing",
        shows="Diversity alone, added, and with weights of heads, offline or online.",
        models=ABLATED,
        data=IMAGES,
        metric=METRICS,
        budgets="64",
        parts=(
            Grid(
                title="Table 4: how importance and diversity are mixed",
                models=ABLATED,
                arms=MIXING,
                across=IMAGE_SETS,
                budgets=("64",),
                figures="mixkv_table4-mixing",
            ),
        ),
        open_=(
            METRICS_OPEN,
            SPARSEMM_OPEN,
            Open("samples of the offline weights", "100 of OCRBench"),
            Open("LLaVA-NeXT's lines with weights, not in the text", "nothing to compare with"),
        ),
        calibrations={
            **SCORES,
            "weights": Calibration(
                method="mixkv:budget=50%,window=0.25", task="ocrbench", samples=100
            ),
        },
    ),
    Experiment(
        id="mixkv:fig4",
        paper=PAPER,
        where="Figure 4",
        shows='Latency and peak memory. The text: MixKV adds "less than 1%" to the latency (L486).',
        models=("qwen2-vl-7b",),
        data="32,000 tokens (L442)",
        metric="total latency, peak memory",
        budgets="64",
        parts=(
            _latency(
                "Figure 4: a prompt of 32,000 tokens",
                (FULL, *SNAPKV, *PYRAMIDKV, *ADAKV),
                ("64",),
            ),
        ),
        open_=(*COST_OPEN, NO_BARS),
    ),
    Experiment(
        id="mixkv:fig6",
        paper=PAPER,
        where="Figure 6",
        shows='As Figure 4, larger budgets. The text: "less than 1%" latency, no measurable rise '
        "in peak memory (L1002-1003).",
        models=("qwen2-vl-7b",),
        data="32,000 tokens",
        metric="total latency, peak memory",
        budgets="128, 256",
        parts=(
            _latency(
                "Figure 6: a prompt of 32,000 tokens", (FULL, *SNAPKV, *ADAKV), ("128", "256")
            ),
        ),
        open_=(*COST_OPEN, Open("model and length", "those of Figure 4"), NO_BARS),
    ),
    Experiment(
        id="mixkv:fig5",
        paper=PAPER,
        where="Figure 5",
        shows="How alike keys are, by head, of text and of images with text. The text: some heads "
        '"more than twice" as much, such as layer 29, heads 0 and 1 (L873-874).',
        models=("qwen2-7b", "qwen2-vl-7b"),
        data="100 samples of LongBench, 100 of TextVQA (L867-868)",
        metric="mean cosine similarity by head",
        budgets="none",
        parts=(
            Probe(
                models=("qwen2-7b", "qwen2-vl-7b"),
                measure=Similarity(),
                given={
                    "qwen2-7b": ("longbench_qasper",),
                    "qwen2-vl-7b": ("longbench_qasper", "textvqa"),
                },
            ),
        ),
        open_=(
            Open("samples, and the set of LongBench", "the first 100, Qasper"),
            Open("layer 29, which models of 28 layers do not have", "all layers are drawn"),
            UNREADABLE,
        ),
    ),
    Experiment(
        id="mixkv:table5-longbench",
        paper=PAPER,
        where="Table 5, LongBench",
        shows="MixKV over HeadKV, question answering on long texts.",
        models=("mistral-7b-v0.2",),
        data="LongBench, six sets",
        metric="F1, %",
        budgets="1024, 128",
        parts=(
            Grid(
                title="Table 5: LongBench",
                models=("mistral-7b-v0.2",),
                arms=HEADKV,
                across=columns(QA),
                budgets=("1024", "128"),
                figures="mixkv_table5-longbench",
                average="Avg.",
                prompt=CUT,
            ),
        ),
        open_=(
            CUT_OPEN,
            HEADKV_OPEN,
        ),
        calibrations=HEAD_SCORES,
    ),
    Experiment(
        id="mixkv:table5-loogle",
        paper=PAPER,
        where="Table 5, LooGLE",
        shows="MixKV over HeadKV, questions that need several places of a long text.",
        models=("mistral-7b-v0.2",),
        data="LooGLE, long dependency, four kinds of questions",
        metric="F1, %",
        budgets="1024, 128",
        parts=(
            Grid(
                title="Table 5: LooGLE",
                models=("mistral-7b-v0.2",),
                arms=HEADKV,
                across=columns(LOOGLE),
                budgets=("1024", "128"),
                figures="mixkv_table5-loogle",
                average="Avg.",
                prompt=CUT,
            ),
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
        paper=PAPER,
        where="Table 6",
        shows="A larger dense model.",
        models=("internvl3-38b",),
        data=IMAGES,
        metric=METRICS,
        budgets="128, 64",
        parts=(_image_table(6, ("internvl3-38b",), (FULL, *SNAPKV, *ADAKV), ("128", "64")),),
        open_=(METRICS_OPEN,),
    ),
    Experiment(
        id="mixkv:table7",
        paper=PAPER,
        where="Table 7",
        shows="A mixture of experts.",
        models=("qwen3-vl-30b-a3b",),
        data=IMAGES,
        metric=METRICS,
        budgets="128, 64",
        parts=(_image_table(7, ("qwen3-vl-30b-a3b",), (FULL, *SNAPKV), ("128", "64")),),
        open_=(METRICS_OPEN,),
    ),
)
