"""The leaderboard's short way to right and wrong is that of `foveate eval`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.quality.asking import rows
from foveate.loading.model import Loaded
from foveate_lab.defaults import Protocol
from foveate_lab.eval.answering.measure import measured
from foveate_lab.eval.answering.reading import FULL
from foveate_lab.eval.contenders import contenders, separate
from foveate_lab.eval.metrics import exact
from foveate_lab.eval.tasks import find_task

SPECS = [
    *contenders(separate("snapkv:window=4,h2o,random,h2o:recent=0.25,when=over_budget"), ["40%"]),
    "nonesuch:budget=20%",  # which is refused
]
TASK = find_task("chart")


@pytest.mark.parametrize(
    "protocol", ["query-agnostic", pytest.param("query-aware", marks=pytest.mark.slow)]
)
def test_answers_are_followed_until_they_are_wrong(loaded: Loaded, protocol: Protocol) -> None:
    sample = next(iter(TASK.samples(1, 0)))
    whole = {row["spec"]: row for row in measured(loaded, TASK, sample, SPECS, protocol)}
    said = {spec: row["prediction"] for spec, row in whole.items() if "error" not in row}
    assert len(said) == len(whole) - 1
    differing = next(text for text in said.values() if text != said[FULL])
    asked = replace(sample, answers=(said[FULL], differing))
    found = {row["spec"]: row for row in rows(loaded, TASK, asked, SPECS, protocol)}
    assert list(found) == list(whole)
    right = {spec: row["right"] for spec, row in found.items() if "error" not in row}
    assert right == {spec: exact(text, asked) for spec, text in said.items()}
    assert 0 < sum(right.values()) < len(right)
    for spec, row in found.items():
        if "error" in row:
            assert row["error"] == whole[spec]["error"]["message"]
        else:
            assert row["kv_bytes"] == whole[spec]["kv_bytes"]
            assert row["compress_s"] >= 0
            assert row["prefill_s"] > 0


def test_strictly_all_but_what_a_table_asks_for_is_refused(loaded: Loaded) -> None:
    """As ``foveate reproduce`` does with RoCo at 1 %."""
    sample, asked = next(iter(TASK.samples(1, 0))), "roco:budget=1%,recent=0.5"
    specs = (asked, "roco:budget=1%", "random:budget=1%")
    given = {"strict": True, "raised": {asked}}
    found = {r["spec"]: r for r in measured(loaded, TASK, sample, specs, "query-aware", **given)}
    assert found["roco:budget=1%"]["error"]["type"] == "InvalidBudget"
    assert found[asked]["raised"]
    assert (found[asked]["asked_tokens"], found[asked]["kept_tokens"]) == (1, 7)
    assert not found["random:budget=1%"]["raised"]
