"""Answers that are decoded together are those that each prompt has alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foveate.loading.model import Loaded
from foveate.prompts.sample import Sample
from foveate_lab.defaults import Protocol
from foveate_lab.eval.answering.measure import measured
from foveate_lab.eval.answering.reading import FULL
from foveate_lab.eval.answering.together import measured_together
from tests.eval.test_measure import TASK, TIMES, alone, samples

TOGETHER = ("snapkv:budget=50%,window=4", "adakv:budget=30%,window=4", "h2o:budget=40%")
BY_THEMSELVES = (
    "h2o:budget=40%,recent=0.25,when=over_budget",
    "snapkv:budget=50%,window=4,store=kivi(bits=4,residual=4)",
)
SPECS = ("oracle:budget=50%", *TOGETHER, *BY_THEMSELVES, "roco:budget=1%", "nonesuch:budget=20%")
ROUNDED = ("kl", "nll", "reference_nll", "feature_error")
DECODED = ("prediction", "score", "score_after_first", "agreement", "first_divergence")

Rows = dict[tuple[str, str], dict[str, Any]]


def asked() -> list[Sample]:
    """Prompts of other lengths, each with a reference; the last cannot be asked query-agnostic."""
    each = zip(samples(3), WORDS, strict=True)
    drawn = [replace(one, answers=(text,), context=text) for one, text in each]
    return [*drawn, replace(drawn[0], name="without", context=drawn[0].text, question="")]


WORDS = ("a red cat sat", "no", "in the year of 1984")


@pytest.mark.parametrize("protocol", ["query-aware", "query-agnostic"])
def test_rows_are_those_of_each_prompt_alone(loaded: Loaded, protocol: Protocol) -> None:
    """All that is said of a cache is the same, and what is said of its answer to rounding. Answers
    may part where two tokens are as likely; what is certain of them is in both.
    """
    task, strict = replace(TASK, reference=True), {"strict": True}
    each = [
        row for one in asked() for row in measured(loaded, task, one, SPECS, protocol, **strict)
    ]
    wanted = {(row["sample"], row["spec"]): row for row in each}
    batches = list(measured_together(loaded, task, asked(), SPECS, protocol, **strict))
    found = {(row["sample"], row["spec"]): row for rows in batches for row in rows}
    assert len(found) == len(wanted) == sum(map(len, batches)) == 4 * (1 + len(SPECS))
    assert len({row["tokens"] for row in wanted.values() if "error" not in row}) > 2
    compared = sum(same_row(found[key], wanted[key], found, wanted) for key in wanted)
    assert compared > 2 * (1 + len(SPECS))  # most, whatever ties there are
    rows = 3 if protocol == "query-agnostic" else 4
    together = {spec for (_, spec), row in found.items() if row.get("batch") == rows}
    assert {FULL, *TOGETHER} <= together
    assert together.isdisjoint(BY_THEMSELVES)


def same_row(found: dict[str, Any], wanted: dict[str, Any], mine: Rows, theirs: Rows) -> bool:
    """Whether both are of the same answers; then all is compared."""
    assert found.keys() - {"batch"} == wanted.keys()
    if "error" in wanted:
        assert found == wanted
        return True
    left_out = {*TIMES, "batch", *ROUNDED, *DECODED, "rouge_full", "reference_tokens"}
    assert all(found[name] == wanted[name] for name in wanted.keys() - left_out)
    full = (wanted["sample"], FULL)
    if mine[full]["prediction"] != theirs[full]["prediction"]:
        return False
    for name in ROUNDED:
        assert found[name] == pytest.approx(wanted[name], rel=1e-3, abs=1e-5), name
    return all(found[name] == wanted[name] for name in (*DECODED, "rouge_full"))


def test_what_is_certain_of_an_answer_is_there(loaded: Loaded) -> None:
    batches = measured_together(loaded, TASK, samples(3), TOGETHER, "query-aware")
    found = {(row["sample"], row["spec"]): row for rows in batches for row in rows}
    for sample in samples(3):
        for spec in (FULL, *TOGETHER):
            row = found[sample.name, spec]
            said, all_of_it, held = alone(loaded, sample, spec)
            assert row["prediction"].startswith(said), spec
            assert row["prediction"] == said or not all_of_it, spec
            assert row["kv_bytes"] == held, spec
