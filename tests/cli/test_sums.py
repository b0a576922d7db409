"""Methods that add up, on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import foveate as library
from foveate.cli.policies import policies
from foveate.compression.labels import budget_of, label

from .conftest import Foveate, refused

WORDS = "Which of these words is seen best, the first, the last, or the one that is looked at?"
SUM = "mixkv(window=4)+prefixkv+lookm"
Read = Callable[..., Any]


def test_show_prints_every_stage_of_a_sum_with_every_setting(as_json: Read) -> None:
    shown = as_json("show", "mixkv + prefixkv + lookm.merge : budget=10%")
    assert shown["spec"] == "mixkv+prefixkv+lookm.merge:budget=10%"
    assert shown["scope"] == "model"
    assert shown["stages"] == {
        "score": "mix_diversity(of=window_attention(window=32, kernel=5, pool=avg, group=mean, "
        "pool_window=false), window=32, intrinsic=value, mix=headwise, diversity_scale=extrinsic, "
        "normalise_over=prefix, profile=null, clamped=true)",
        "budget": "prefix_budget(amount=10%, profile=null, delta=0.0, steps=64)",
        "select": "top_k(recent=32, sinks=0, protect_text=false)",
        "merge": "merge_nearest(by=cosine, how=pivotal, similarity_filter=false, within=all)",
        "when": "fixed_slot(distance=25, counted_from=prompt, every=1)",
        "attend": "softmax()",
        "store": "full_precision()",
    }


@pytest.mark.parametrize("spec", [SUM, "mixkv+david", "csp+prefixkv", "h2o+lookm.score+csp.attend"])
def test_what_show_prints_in_full_is_a_spec_of_the_same_sum(as_json: Read, spec: str) -> None:
    shown = as_json("show", f"{spec}:budget=20%")
    by_hand = "policy:" + ",".join(f"{slot}={text}" for slot, text in shown["stages"].items())
    assert library.policy(by_hand) == library.policy(f"{spec}:budget=20%")


def test_show_names_all_papers_and_fits_100_columns(foveate: Foveate, as_json: Read) -> None:
    spec = "mixkv+prefixkv+random.select+lookm.merge:budget=10%"
    papers = [library.METHODS[name].paper.title for name in ("mixkv", "prefixkv", "lookm")]
    assert as_json("show", spec)["paper"] == "; ".join(papers)
    text = foveate("show", spec).stdout
    assert text.splitlines()[0].rstrip() == spec
    assert max(len(line) for line in text.splitlines()) <= 100
    assert all(paper.split(":")[0] in text for paper in papers)


@pytest.mark.parametrize("rest", ["", ":budget=10%"])
def test_cite_prints_the_entries_of_all_methods_in_order(foveate: Foveate, rest: str) -> None:
    text = foveate("cite", f"mixkv(window=4) + prefixkv + random.select + lookm.merge{rest}").stdout
    entries = [library.METHODS[name].paper.bibtex for name in ("mixkv", "prefixkv", "lookm")]
    assert text == "\n\n".join(entries) + "\n"


def test_cite_prints_an_entry_once_though_two_terms_share_it(foveate: Foveate) -> None:
    text = foveate("cite", "csp+lookm.score+lookm.merge").stdout
    assert text.count("@inproceedings{wan2024lookm,") == 1


def test_cite_says_that_a_sum_comes_from_no_paper(foveate: Foveate) -> None:
    result = foveate("cite", "random+full")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "random+full comes from no paper" in result.stderr


@pytest.mark.parametrize("command", ["show", "cite"])
@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("mixkv+prefixvk:budget=20%", "Did you mean 'prefixkv'?"),
        ("mixkv+lookm.mege:budget=20%", "Did you mean 'merge'?"),
        ("mixkv.score+prefixkv:budget=20%", "gives all its stages"),
        ("mixkv+:budget=20%", "on each side of every plus sign"),
        ("mixkv+prefixkv:budgte=20%", "Did you mean 'budget'?"),
        ("mixkv+csp:budget=20%,window=8", "window=8 changes nothing in mixkv+csp"),
    ],
)
def test_a_bad_sum_is_one_line_on_stderr(
    foveate: Foveate, command: str, spec: str, hint: str
) -> None:
    assert hint in refused(foveate(command, spec))


def test_run_has_a_row_for_a_sum(as_json: Read, llama: Path) -> None:
    result = as_json(
        "run",
        "--model",
        llama,
        "--prompt",
        WORDS,
        "--method",
        SUM,
        "--budget",
        "50%",
        "--max-new-tokens",
        4,
    )
    full, row = result["rows"]
    assert (row["method"], row["budget"]) == (SUM, "50%")
    assert row["kept_tokens"] == result["prompt"]["tokens"] // 2
    assert row["kv_bytes"] < full["kv_bytes"]
    assert row["decode_ms_per_token"] > 0


def test_run_has_a_row_for_a_sum_that_asks_what_is_visual(
    as_json: Read, llava: Path, picture: Path
) -> None:
    result = as_json(
        "run",
        "--model",
        llava,
        "--image",
        picture,
        "--prompt",
        WORDS,
        "--method",
        "mixkv(window=4)+david",
        "--method",
        "csp+prefixkv",
        "--budget",
        "50%",
        "--max-new-tokens",
        2,
    )
    assert result["prompt"]["visual_tokens"] == 9
    tokens = result["prompt"]["tokens"]
    assert [(row["method"], row["kept_tokens"]) for row in result["rows"][1:]] == [
        ("mixkv(window=4)+david", tokens // 2),
        ("csp+prefixkv", tokens // 2),
    ]


def test_the_table_of_a_run_names_the_sum_and_fits_100_columns(
    foveate: Foveate, llama: Path
) -> None:
    result = foveate(
        "run",
        "--model",
        llama,
        "--prompt",
        WORDS,
        "--method",
        SUM,
        "--budget",
        "50%",
        "--max-new-tokens",
        2,
    )
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert max(len(line) for line in lines if str(llama) not in line) <= 100
    assert any(line.startswith("mixkv(window=4)+ ") and "50%" in line for line in lines)
    assert "…" not in result.stdout


def test_a_sum_runs_at_each_budget_and_its_label_leaves_the_budget_out() -> None:
    specs = ["mixkv + david", "mixkv+prefixkv:budget=1%,window=16,when=after_prefill"]
    _, *rest = policies(specs, ["10%", "64"])
    assert [(label(policy), budget_of(policy)) for policy in rest] == [
        ("mixkv+david", "10%"),
        ("mixkv+david", "64"),
        ("mixkv+prefixkv:window=16,when=after_prefill()", "10%"),
        ("mixkv+prefixkv:window=16,when=after_prefill()", "64"),
    ]


def test_a_sum_without_a_budget_gets_the_default_one() -> None:
    _, policy = policies(["mixkv+prefixkv"], [])
    assert (label(policy), budget_of(policy)) == ("mixkv+prefixkv", "20%")
