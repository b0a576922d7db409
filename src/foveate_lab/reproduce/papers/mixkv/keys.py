"""How alike keys are: figures 1 to 3 and 7."""

from __future__ import annotations

from foveate_lab.reproduce.experiment import UNREADABLE, Experiment, Open
from foveate_lab.reproduce.papers.mixkv.shared import MIX, PAPER
from foveate_lab.reproduce.probes import Coverage, KeyMap, Similarity
from foveate_lab.reproduce.trials import Probe

KEPT = (f"snapkv:budget=64,{MIX}", f"mixkv:budget=64,{MIX}")

EXPERIMENTS = (
    Experiment(
        id="mixkv:fig1a",
        of=PAPER,
        where="Figure 1 (a)",
        shows="How alike the keys of one head are, in a language and in a vision-language model.",
        models=("qwen2-7b", "qwen2-vl-7b"),
        data="LongBench for Qwen2, OCRBench for Qwen2-VL",
        metric="cosine similarity of keys",
        budgets="none",
        trial=Probe(
            measure=KeyMap(),
            given={"qwen2-7b": ("longbench_qasper",), "qwen2-vl-7b": ("ocrbench",)},
            samples=1,
        ),
        open_=(
            Open("samples, layer and head", "the first, the middle layer, its first head"),
            UNREADABLE,
        ),
    ),
    Experiment(
        id="mixkv:fig1b",
        of=PAPER,
        where="Figure 1 (b)",
        shows="How alike keys and values are in all heads. The text: keys of Qwen2 peak at 0.2 to "
        "0.4, those of Qwen2-VL at 0.6 to 0.8, two to three times as high (L62).",
        models=("qwen2-7b", "qwen2-vl-7b"),
        data="LongBench for Qwen2, OCRBench for Qwen2-VL",
        metric="mean cosine similarity by head",
        budgets="none",
        trial=Probe(
            measure=Similarity(),
            given={"qwen2-7b": ("longbench_qasper",), "qwen2-vl-7b": ("ocrbench",)},
        ),
        open_=(Open("samples and bins", "100, 20 bins, a key's pair with itself left out"),),
    ),
    Experiment(
        id="mixkv:fig2",
        of=PAPER,
        where="Figure 2",
        shows="How alike the keys of every head are, across benchmarks. The text: heads of "
        "Qwen2-VL-7B above 0.9 and below 0.3 (L64).",
        models=("llava-next-mistral-7b", "qwen2-vl-7b"),
        data="100 samples of each benchmark (L853)",
        metric="mean cosine similarity by head",
        budgets="none",
        trial=Probe(
            measure=Similarity(),
            each=("docvqa", "ocrbench", "textvqa", "chartqa", "textcaps"),
        ),
        open_=(Open("which benchmarks, and which samples", "the five image sets, the first 100"),),
    ),
    Experiment(
        id="mixkv:fig3",
        of=PAPER,
        where="Figure 3",
        shows="Where kept keys lie among all keys, under SnapKV and with MixKV.",
        models=("qwen2-vl-7b",),
        data="one sample of TextVQA (L857)",
        metric="two dimensions: t-SNE (L208) and principal components (L857)",
        budgets="64",
        trial=Probe(
            measure=Coverage(policies=KEPT, layer=23, head=3),
            each=("textvqa",),
            samples=1,
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
        of=PAPER,
        where="Figure 7",
        shows="More views like Figure 3.",
        models=("qwen2-vl-7b",),
        data="three samples of TextVQA",
        metric="two dimensions",
        budgets="64",
        trial=Probe(
            measure=Coverage(policies=KEPT, layer=14, head=1, by_modality=True),
            each=("textvqa",),
            samples=3,
        ),
        cannot="there is a caption and nothing else: neither model, data, layer, head nor budget "
        "is named; drawn as Figure 3 of another head, text and image tokens apart.",
    ),
)
