"""``foveate eval --executor http`` against the server: the same questions as in this process."""

import pytest

from foveate import policy
from foveate.loading.model import load
from foveate.vllm.plans.gap import Room
from foveate_lab import evaluate
from foveate_lab.eval.answering.measure import measured
from foveate_lab.eval.tasks import TASKS
from tests.serving.server import server

POLICY, BLOCK, COUNT = "snapkv:budget=50%", 32, 8
SPACE = ("--num-gpu-blocks-override", "128", "--kv-cache-memory-bytes", str(512 << 20))
# in this process kv_bytes also has the positions that are stored beside pairs
SAME = ("question", "tokens", "kept_tokens", "kv_bytes_full")


def by_sample(rows):
    """The rows by sample, and True for the full cache."""
    return {(row["sample"], row["spec"] == "full"): row for row in rows}


def in_this_process(folder, lengths):
    """Rows under the full cache, and at the budget that whole blocks leave of each prompt."""
    loaded, task = load(folder), TASKS["text_needle"]
    room = Room.of(policy(POLICY).amount, policy(POLICY).least)
    for sample in task.samples(COUNT, 0):
        spec = f"snapkv:budget={room.kept(lengths[sample.name], BLOCK)}"
        yield from measured(loaded, task, sample, [spec], "query-aware")


@pytest.mark.slow
def test_a_trained_model_answers_over_http_as_in_this_process(tmp_path):
    folder = tmp_path / "smollm2"
    loaded = load("smollm2")
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    with server(str(folder), POLICY, tmp_path / "log.txt", *SPACE) as running:
        over_http = {"executor": "http", "url": f"{running.url}/v1", "methods": POLICY}
        result = evaluate(str(folder), "text_needle", **over_http, limit=COUNT, timed=0)
        counted = running.get("/metrics")
    lengths = {row["sample"]: row["tokens"] for row in result.rows}
    served, local = by_sample(result.rows), by_sample(in_this_process(str(folder), lengths))
    assert served.keys() == local.keys()
    for key, row in served.items():
        assert [row[name] for name in SAME] == [local[key][name] for name in SAME]
    for full in (True, False):
        texts = [
            (served[name, full]["prediction"], local[name, full]["prediction"]) for name in lengths
        ]
        assert sum(mine == theirs for mine, theirs in texts) >= COUNT - 1  # one near tie
    changed = {served[n, True]["prediction"] != served[n, False]["prediction"] for n in lengths}
    assert changed == {True, False}
    prompts = [line for line in counted.splitlines() if line.startswith("foveate:prompts_total")]
    assert {float(line.rpartition(" ")[2]) for line in prompts} == {float(COUNT)}
