"""What ``bench`` tells is what the caches hold; shapes are those of the models they name."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import foveate
from foveate.errors import InvalidInput, MissingPackage, ModelNotFound, UnsupportedModel
from foveate.hf.model.internals import CACHE
from foveate.loading.model import load
from foveate_lab.bench import Subject, bench, of_dims, of_model, processor
from foveate_lab.bench.dims import DIMS, config_of
from foveate_lab.bench.measure import ticks
from foveate_lab.bench.memory import freed_at_once, peak_of
from foveate_lab.bench.peer import kvpress
from foveate_lab.bench.timing import prefill, throughput
from foveate_lab.cli.bench import SHAPES
from tests import zoo
from tests.zoo.directory import save_llama

POLICIES = ["snapkv:budget=20%,window=8", "adakv:budget=20%,window=8", "h2o:budget=32"]
PARAMETERS = {  # published: Vicuna's 6.74 and 13.02 billion with 64 more tokens; Qwen2-7B's 7.62
    "llava-1.5-7b": 6_738_939_904,
    "llava-1.5-13b": 13_016_519_680,
    "qwen2-vl-7b": 7_615_616_512,
    "internvl3-8b": 7_612_820_992,
}


@pytest.fixture(scope="module")
def subject() -> Subject:
    model = zoo.build("llama")
    ids = torch.randint(4, 90, (1, 160), generator=torch.Generator().manual_seed(0))
    return Subject("llama", model, ids, random=False)


def test_a_row_tells_what_a_block_of_its_own_tells(subject: Subject) -> None:
    chosen = [foveate.policy(spec) for spec in POLICIES]
    ticked: list[int] = []
    rows = bench(subject, chosen, rounds=1, steps=3, memory=10**6, tick=lambda: ticked.append(1))
    assert len(ticked) == ticks(4, 1)
    assert [row.method for row in rows] == ["full", "snapkv:window=8", "adakv:window=8", "h2o"]
    assert [row.budget for row in rows] == [None, "20%", "20%", "32"]
    for row, policy in zip(rows, ["full", *chosen], strict=True):
        with foveate.compress(subject.model, policy, vision=subject.vision) as session:
            session.prefill(input_ids=subject.ids)
            stats = session.stats
        assert (row.kv_bytes, row.kept_tokens) == (stats.bytes_after, stats.kept_tokens)
        assert row.kv_share == stats.bytes_after / stats.bytes_before
        assert row.prefill_s > 0
        assert row.decode_ms_per_token > 0
        assert row.tokens_per_s is not None
        assert row.tokens_per_s > 0
    assert rows[0].decode_ratio == 1.0
    assert (rows[1].batch or 0) > 3 * (rows[0].batch or 0) > 0


def test_a_batch_fits_into_the_memory_given_and_none_does_if_there_is_too_little(
    subject: Subject,
) -> None:
    with torch.no_grad():
        filled = prefill(subject, foveate.policy(POLICIES[0]))
        found = throughput(subject, filled, 10**6, 3)
        assert found is not None
        with foveate.compress(subject.model, POLICIES[0]) as session:
            one = session.fork(filled.cache)
            for _ in range(4):
                subject.model(input_ids=subject.ids[:, -1:], **{CACHE: one})
            held = session.bytes_held
        assert found.rows == 10**6 // held
        assert throughput(subject, filled, held - 1, 3) is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
def test_the_peak_is_that_of_the_work_alone() -> None:
    size = 64 * 2**20
    held = torch.ones(size, dtype=torch.uint8)  # there before, so not counted
    peak = peak_of(lambda: torch.ones(size, dtype=torch.uint8), torch.device("cpu"))
    again = peak_of(lambda: None, torch.device("cpu"))
    assert held.numel() == size
    assert peak is not None
    assert again is not None
    assert 0.95 * size <= peak < 1.25 * size
    assert again < size / 8


def test_elsewhere_than_on_linux_no_c_library_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr("ctypes.CDLL", lambda name: pytest.fail(f"{name} was loaded"))
    with freed_at_once():
        assert peak_of(lambda: None, torch.device("cpu")) is None


def test_a_processor_is_called_by_its_makers_name(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, instructions = processor(torch.device("cpu")).rsplit(" (", 1)
    facts = Path("/proc/cpuinfo")
    assert f": {cpu}\n" in facts.read_text() if facts.exists() else cpu
    assert instructions == f"{torch.backends.cpu.get_cpu_capability()})"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    assert processor(torch.device("cuda", 1)) == "GPU 1"


@pytest.mark.parametrize("name", DIMS)
def test_shapes_are_those_of_the_models(name: str) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config_of(DIMS[name]))
    assert sum(weight.numel() for weight in model.parameters()) == PARAMETERS[name]


def test_the_help_names_all_shapes() -> None:
    assert ", ".join(DIMS) == SHAPES  # written out there: help imports no torch


def test_a_shape_is_cut_to_its_first_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = replace(
        DIMS["qwen2-vl-7b"], hidden=64, heads=4, kv_heads=2, intermediate=96, vocabulary=128
    )
    monkeypatch.setitem(DIMS, "tiny", tiny)
    subject = of_dims("tiny", 40, layers=2)
    assert subject.model.config.num_hidden_layers == 2
    assert subject.ids.shape == (1, 40)
    assert subject.random
    assert int(subject.vision.sum()) == 20
    weights = torch.cat([w.detach().flatten().float() for w in subject.model.parameters()])
    assert bool(weights.isfinite().all())
    assert 0 < float(weights.abs().max()) < 0.0201  # 0.02 in bfloat16
    with pytest.raises(InvalidInput, match="tiny has 28 layers, not 29"):
        of_dims("tiny", 40, layers=29)
    with pytest.raises(ModelNotFound, match=r"Did you mean 'llava-1\.5-7b'"):
        of_dims("llava-1.5-7", 40)


def test_a_prompt_is_as_long_as_is_asked(tmp_path: Path) -> None:
    subject = of_model(load(str(save_llama(tmp_path / "llama"))), 300)
    assert subject.ids.shape == (1, 300)
    assert len(set(subject.ids[0].tolist())) > 5


STAND_IN = str(Path(__file__).parent / "stand_in")
"""A package kvpress whose presses keep the latest pairs."""


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PYTHONPATH", STAND_IN)
    return sys.executable


@pytest.fixture(scope="module")
def peer(subject: Subject) -> dict[str, dict[str, Any]]:
    """Rows of one peer process by method; starting a process for every test would take longer."""
    methods = ("knorm", "mixkv", "adakv", "finch", "think")
    policies = ["full", *(f"{name}:budget=25%" for name in methods)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", STAND_IN)
        rows = kvpress(
            subject, [foveate.policy(s) for s in policies], sys.executable, rounds=1, steps=2
        )
    return {row["method"]: row for row in rows}


def test_the_other_side_measures_the_same_model_and_prompt(
    subject: Subject, peer: dict[str, dict[str, Any]]
) -> None:
    assert list(peer) == ["full", "knorm", "adakv", "finch", "think"]  # no press does mixkv
    full, knorm = peer["full"], peer["knorm"]
    assert (full["press"], knorm["press"], knorm["budget"]) == (None, "KnormPress", "25%")
    with foveate.compress(subject.model, "full") as session:
        session.prefill(input_ids=subject.ids)
        assert full["kv_bytes"] == session.stats.bytes_before
    assert knorm["kv_bytes"] * 4 == full["kv_bytes"]
    assert all(row["decode_ms_per_token"] > 0 and row["peak_bytes"] > 0 for row in (full, knorm))


def test_what_a_press_hides_counts_as_its_own(peer: dict[str, dict[str, Any]]) -> None:
    assert peer["adakv"]["kv_bytes"] == peer["full"]["kv_bytes"] + 3 * 8


def test_presses_are_told_what_they_need_and_made_of_others(
    peer: dict[str, dict[str, Any]],
) -> None:
    assert peer["finch"]["kv_bytes"] * 4 == peer["full"]["kv_bytes"]
    assert peer["think"]["kv_bytes"] * 5 == peer["full"]["kv_bytes"]
    assert peer["think"]["press"] == "ComposedPress(SnapKVPress, ThinKPress)"


def test_without_the_other_library_one_is_told_what_to_do(
    subject: Subject, stand_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [foveate.policy("knorm:budget=64")]
    with pytest.raises(InvalidInput, match="takes shares of the prompt, not 64"):
        kvpress(subject, some, stand_in, rounds=1, steps=1)
    with pytest.raises(InvalidInput, match="no Python at '/nowhere/python'"):
        kvpress(subject, [foveate.full()], "/nowhere/python", rounds=1, steps=1)
    seeing = Subject("llava", zoo.build("llava"), subject.ids, random=False)
    with pytest.raises(UnsupportedModel, match="llava is a vision-language model"):
        kvpress(seeing, [foveate.full()], stand_in, rounds=1, steps=1)
    monkeypatch.delenv("PYTHONPATH")
    with pytest.raises(MissingPackage, match="needs the package 'kvpress'"):
        kvpress(subject, [foveate.full()], sys.executable, rounds=1, steps=1)
