"""Predictions of a plan, beside measured runs of the demo and times that the papers print."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from foveate.cli.app import app
from foveate.hf import branch, compress
from foveate.loading.model import load
from foveate.memory import Request
from foveate.memory.model import bare
from foveate.memory.trace import trace
from foveate_lab.eval.answering.reading import read_prompt
from foveate_lab.eval.executors.job import Job, answered
from foveate_lab.eval.tasks import find_task
from foveate_lab.reproduce import EXPERIMENTS, reproduction
from foveate_lab.reproduce.models import MODELS
from foveate_lab.reproduce.resources import toml
from foveate_lab.reproduce.running.estimate import (
    Hardware,
    SampleLengths,
    hardware_of,
    lengths_of,
    samples_of,
    size_of,
    work,
)
from foveate_lab.reproduce.setting import folder_of
from foveate_lab.reproduce.stand_in import judge, write
from foveate_lab.reproduce.tables.printed import printed

DEMO = "demo"
SPECS = ("snapkv:budget=20%,window=8", "h2o:budget=20%,recent=0.5", "streaming_llm:budget=20%")


def test_every_model_and_benchmark_has_its_sizes():
    tables = toml("hardware")
    assert {*tables["models"]} == {*MODELS}
    tasks = {task for one in EXPERIMENTS.values() for task in one.trial.tasks()}
    assert {folder_of(task) for task in tasks} <= {*tables["data"]}
    assert samples_of("milebench_s3(set=IEdit)") == 200
    assert samples_of("milebench_n1") == 320
    assert samples_of("milebench_t2") == 800


@pytest.mark.parametrize(
    ("table", "gpu"),
    [("csp_table2", "rtx-4090"), ("lookm_table4", "rtx-3090"), ("david_table5", "rtx-3090")],
)
def test_a_step_of_decoding_takes_what_papers_print(table, gpu):
    full = printed(table)["llava-1.5-7b", "Full cache", ""].values
    size = size_of("llava-1.5-7b", "llava-hf/llava-1.5-7b-hf")
    cache = (full["GiB"] if "GiB" in full else full["GB"]) * 2**30
    low, high = hardware_of(gpu).step(size, cache)
    assert 1000 * low < full["ms/token"] < 1000 * high


def test_batches_decode_as_fast_as_prefixkv_prints():
    """Within a factor of 1.5: which A100 it is, and how caches grow there, is not said."""
    rows = printed("prefixkv_table3")
    for model, tokens, new, batch in (
        ("13b", 1024, 512, 8),
        ("13b", 624, 256, 16),
        ("7b", 1024, 512, 16),
    ):
        size = size_of(f"llava-1.5-{model}", "hub")
        name = f"{tokens} + {new}, batch {batch}, Full cache"
        seconds = rows[f"llava-1.5-{model}", name, ""].values["s"]
        low, high = hardware_of("a100-80gb").step(size, batch * size.cache(tokens + new / 2))
        assert low < seconds / new < 1.5 * high


def test_operations_are_near_those_of_the_models_own_code():
    """The formula counts the vision tower beside the decoder."""
    size = size_of(DEMO, DEMO)
    traced = trace(bare(DEMO), Request(text=400, answer=1))
    assert traced.flops < size.prefill_flops(traced.tokens) < 1.5 * traced.flops
    assert traced.cache == pytest.approx(2 * size.cache(traced.tokens))  # float32


def fastest(call: Any) -> float:
    """The least seconds of three calls."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


@torch.no_grad()
def this_cpu(loaded: Any, task: Any, sample: Any) -> tuple[Hardware, int]:
    """What this CPU reaches on a prompt, and in steps of decoding; the tokens of the prompt."""
    size = size_of(DEMO, DEMO)

    def reading() -> Any:
        found = read_prompt(loaded, task, sample, "query-aware", timed=False, longest_prompt=None)
        return found, found.recorded(sums=False)[0]

    read_s = fastest(reading)
    prompt, recording = reading()
    steps = 8

    def decoding(count: int) -> None:
        with compress(loaded.model, "full", tokenizer=loaded.tokenizer) as session:
            model = loaded.model
            cache = branch(session, recording)
            fed = recording.logits.argmax(-1, keepdim=True)
            for _ in range(count):
                model(input_ids=fed, past_key_values=cache)

    step_s = (fastest(lambda: decoding(steps + 1)) - fastest(lambda: decoding(1))) / steps
    tflops = size.prefill_flops(prompt.prompt.tokens) / read_s / 1e12
    each = 1000 * step_s / size.layers
    ones = (1.0, 1.0)
    return Hardware(tflops, 1e9, 1.0, ones, ones, (each, each)), prompt.prompt.tokens


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ocrbench", "mm_vet"])
def test_a_run_of_the_demo_takes_what_is_predicted(name: str, tmp_path: Path) -> None:
    """Within a factor of 1.5, from what this CPU was measured to reach just before."""
    write(tmp_path, 3, [name])
    loaded = load(DEMO)
    task = replace(find_task(f"{name}={tmp_path / name}", judge), longest=64)
    samples = list(task.samples(3, 0))
    list(answered(loaded, Job(task, samples[0], SPECS, False), "query-aware"))  # warms up
    hardware, _ = this_cpu(loaded, task, samples[0])
    rows: list[dict[str, Any]] = []
    began = time.perf_counter()
    for sample in samples:
        rows += answered(loaded, Job(task, sample, SPECS, False), "query-aware")
    took = time.perf_counter() - began
    tokens = [len(loaded.tokenizer(row["prediction"])["input_ids"]) + 1 for row in rows]
    lengths = SampleLengths(
        sum(row["tokens"] for row in rows) / len(rows),
        sum(tokens) / len(tokens),
        sum(row["reference_tokens"] for row in rows) / len(rows),
    )
    size = size_of(DEMO, DEMO)
    seconds, _ = work(size, lengths, SPECS, len(samples), 1).seconds(hardware, size, lengths)
    assert seconds / 1.5 < took < 1.5 * seconds, (seconds, took)


def plan(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["reproduce", *arguments, "--plan", "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_plan_without_data_weights_or_rows_predicts_hours_memory_and_downloads(tmp_path):
    nothing = ("--data", str(tmp_path / "none"), "--out", str(tmp_path / "out"))
    left = plan("csp:table1-7b", *nothing)
    (one,) = left["estimates"]
    assert (one["model"], one["data"]) == ("llava-1.5-7b", {"milebench": 17})
    assert one["weights"] == pytest.approx(14.1, abs=0.1)
    assert 15 < one["memory"] < 40
    low, high = one["seconds"]
    assert 3600 < low < high < 100 * 3600
    assert 25e6 < one["tokens"] < 100e6
    (eight,) = plan("csp:table1-7b", *nothing, "--gpus", "8")["estimates"]
    assert eight["seconds"] == pytest.approx([low / 8, high / 8])
    (half,) = plan("csp:table1-7b", *nothing, "--part", "1/2")["estimates"]
    assert half["tokens"] == pytest.approx(one["tokens"] / 2)
    (few,) = plan("csp:table1-7b", *nothing, "--limit", "2")["estimates"]
    assert few["tokens"] < one["tokens"] / 20
    shown = CliRunner().invoke(app, ["reproduce", "csp:table1-7b", *nothing, "--plan"])
    assert "Downloads: about 14 GB of weights and 17 GB of data (milebench 17)" in shown.output
    assert "Predicted for 1 x a100-80gb: " in shown.output
    unknown = CliRunner().invoke(
        app, ["reproduce", "csp:table1-7b", *nothing, "--plan", "--gpu", "h10"]
    )
    assert unknown.exit_code == 2
    assert "Did you mean 'h100'?" in unknown.output


def test_a_model_that_needs_two_gpus_runs_on_half_as_many_pairs(tmp_path):
    options: reproduction.Options = {"data": tmp_path, "out": tmp_path / "out"}
    ids = ["lookm:table1-13b"]
    (large,) = reproduction.plan(ids, gpu="l4", gpus=4, **options).estimates
    (alone,) = reproduction.plan(ids, gpu="l4", gpus=2, **options).estimates
    assert 24 < large.memory < 48
    assert large.seconds[0] == pytest.approx(alone.seconds[0] / 2)


def test_lengths_are_bounded_by_a_cut_of_the_prompt():
    size = size_of("llava-1.5-7b", "hub")
    assert lengths_of("milebench_t1", size, None, False).prompt == 4096
    assert lengths_of("longbench_qasper", size, 7950, False).prompt == 7950
    assert lengths_of("mm_vet", size, None, False) == SampleLengths(656, 150, 30)
    assert lengths_of("mm_vet", size, None, True).answer == 3
