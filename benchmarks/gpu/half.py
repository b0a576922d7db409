"""Prefills in half precision by methods that read column sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.gpu.models import SuiteSetting, measured_with, subject_of, with_other_prompt
from benchmarks.gpu.rows import Row, attempted, table
from foveate.compression.composition import policy as policy_of
from foveate_lab.bench.subject import Subject
from foveate_lab.bench.timing import prefills

MODEL, LAYERS, TOKENS = "qwen2-vl-7b", 4, (4096, 16384)
POLICIES = ("h2o", "prefixkv", "lookm:merging=none", "csp", "snapkv")
AIM = "Aim: at most 1.2 times the stock prefill."


def rows(setting: SuiteSetting) -> Iterator[Row]:
    """Yield a row for every policy, between stock prefills."""
    subject = subject_of(MODEL, TOKENS[0], setting, layers=LAYERS)
    for tokens in TOKENS[:1] if setting.quick else TOKENS:
        prompt = with_other_prompt(subject, tokens, setting)
        for spec in POLICIES:
            about = {"tokens": tokens, "policy": spec}
            yield attempted(about, _measured, prompt, spec, setting)


def _measured(subject: Subject, spec: str, setting: SuiteSetting) -> dict[str, Any]:
    policy = policy_of(spec, budget="20%")
    if setting.quick and spec == "snapkv":
        policy = policy.but(window=4)
    with measured_with(setting):
        (timings,) = prefills(subject, [policy], 1 if setting.quick else 3, lambda: None).values()
    return {"ratio": timings.ratio, "stock_s": timings.alone, "stages_s": timings.stages}


def page(measured: Sequence[Row]) -> list[str]:
    """Return the table of all rows."""
    columns = {"tokens": "tokens", "policy": "policy", "ratio": "prefill, to stock",
               "stock_s": "stock, s", "stages_s": "stages alone, s"}  # fmt: skip
    return [
        f"{MODEL}'s shape with {LAYERS} layers, bfloat16. {AIM}", "", *table(measured, columns)
    ]  # fmt: skip
