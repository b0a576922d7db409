"""What docs/coming_from_kvpress.md says to users of kvpress."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import foveate
from foveate.methods.recommended.head_levels import LEVELS
from foveate.policies.gathering import GATHERINGS, targets_of
from foveate.profiles.profile import SCHEMA, Profile
from foveate_lab.bench.peer import PRESSES as TIMED
from foveate_lab.bench.peer import WITH_PROFILE
from tests import zoo
from tests.golden.kvpress_rows import ELSEWHERE, ROWS, pending
from tests.golden.vectors import DATA, load
from tests.profiles import tensors_of
from tests.zoo.directory import CHAT_TEMPLATE, tokenizer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "coming_from_kvpress.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

sys.path.insert(0, str(ROOT / "docs" / "scripts"))
try:
    from kvpress_names import PRESSES
finally:
    sys.path.pop(0)

SPECS = [press.spec for press in PRESSES if press.spec]
QUOTED = re.findall(r"`([a-z_0-9]+\+[a-z_0-9+.]+)`", PAGE)

TENSORS = {
    "kvzap": {
        "of_key.0": torch.ones(2, 8),
        "of_value.0": torch.ones(2, 8),
        "offset.0": torch.zeros(2),
    },
    "q_filters": {"filters.0": torch.ones(2, 8)},
    "fast_kvzip": {f"{name}.0": t for name, t in tensors_of("fast_kvzip", 2, 8, 4).items()},
    "recommended": {
        "of_key.0": torch.ones(2, 8),
        "of_value.0": torch.ones(2, 8),
        "of_facts.0": torch.ones(2, 5),
        "offset.0": torch.zeros(2),
        "levels.0": torch.zeros(2, LEVELS),
    },
    "expected_attention": {
        "mean.0": torch.zeros(4, 8),
        "covariance.0": torch.zeros(4, 8, 8),
        "frequencies.0": torch.ones(4),
        "pairs.0": torch.arange(8).view(2, 4),
    },
}


def test_every_export_of_kvpress_is_in_the_table():
    exports = json.loads((DATA / "kvpress_names.json").read_text())["exports"]
    assert sorted(press.name for press in PRESSES) == exports


def test_the_presses_that_are_timed_are_exported():
    exports = json.loads((DATA / "kvpress_names.json").read_text())["exports"]
    named = {*TIMED.values(), *WITH_PROFILE.values()} - {None}
    assert {name for press in named for name in re.findall(r"\w+", press)} <= {*exports}


@pytest.mark.parametrize("spec", [spec for spec in SPECS if not pending(spec)])
def test_every_spec_is_read_and_prints_as_it_is(spec, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for method, kind in re.findall(r"profile=(\w+)\.(\w+)", spec):
        about = {"method": method, "model": "", "layers": 1, "samples": 1, "budget": ""}
        if kind == "json":
            Profile(by_layer=[[1.0, 0.5]], **about).save(f"{method}.json")
        else:
            target = next(iter(targets_of(GATHERINGS[method])), "")
            note = {name: str(value) for name, value in about.items()}
            note |= {"schema": SCHEMA, "target": target}
            save_file(TENSORS[method], f"{method}.safetensors", note)
    policy = foveate.policy(spec)
    assert foveate.policy(policy.spec) == policy


@pytest.mark.parametrize("spec", sorted({spec for spec in QUOTED if not pending(spec)}))
def test_sums_in_the_text_exist(spec):
    assert foveate.policy(f"{spec}:budget=20%")


def test_what_is_called_the_same_was_compared():
    compared = {row.press for row in ROWS if not row.departs and row.inputs == "inputs"}
    recorded = {load(f"kvpress_{press}")[1]["class"] for press in compared | set(ELSEWHERE)}
    assert {press.name for press in PRESSES if press.how == "same"} <= recorded


def test_both_sides_are_shown_and_ours_runs(capsys):
    model, first = zoo.build("llama"), zoo.prompt("llama", lengths=(400,))
    words = tokenizer()  # a letter is a token
    words.chat_template = CHAT_TEMPLATE
    given = {
        "model": model,
        "tokenizer": words,
        "inputs": first,
        "context": "A receipt. " * 36 + "A",
        "question": "Which day?",
        "questions": ["Which day?", "Where?"],
    }
    theirs, ours = BLOCKS[::2], BLOCKS[1::2]
    assert len(theirs) == len(ours) == 3
    assert all("from kvpress" in block for block in theirs)
    for block in ours:
        exec(block, given)
    assert "80.0 of 400 tokens kept" in capsys.readouterr().out
    assert len({*given["answers"], given["answer"]}) == 3
    stats = given["found"]["stats"]
    assert (stats.policy, stats.seen) == ("keydiff+adakv:budget=20%", len("user : ") + 397)
    assert stats.layers[0].kept.unique().numel() > 1
    assert int(stats.held) == 80


def test_the_page_counts_as_both_sides_do():
    assert (int(60 * (1 - 0.8)), int(foveate.knorm(budget="20%").amount.value * 60)) == (11, 12)
    assert "11 of 60 tokens" in PAGE
    assert "12 of 60 tokens" in PAGE


@pytest.mark.parametrize("path", re.findall(r"\]\(([^)h#][^)]*)\)", PAGE))
def test_links_lead_somewhere(path):
    assert (ROOT / "docs" / path).exists()
