"""``foveate eval --executor http`` against the server: the same questions as in this process."""

import pytest

from foveate import policy
from foveate.loading.model import load
from foveate.vllm.plans.gap import Room
from foveate_lab import evaluate
from tests.serving.server import server

POLICY, BLOCK, COUNT = "snapkv:budget=50%", 32, 8
SPACE = ("--num-gpu-blocks-override", "128", "--kv-cache-memory-bytes", str(512 << 20))


def answers(rows):
    """The predictions by sample and spec."""
    return {(row["sample"], row["spec"]): row["prediction"] for row in rows}


@pytest.mark.slow
def test_a_trained_model_answers_over_http_as_in_this_process(tmp_path):
    """Under the full cache, and at the budget that whole blocks leave of each prompt."""
    folder, settings = tmp_path / "smollm2", {"limit": COUNT, "timed": 0}
    loaded = load("smollm2")
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    with server(str(folder), POLICY, tmp_path / "log.txt", *SPACE) as running:
        over_http = {"executor": "http", "url": f"{running.url}/v1", "methods": POLICY}
        served = evaluate(str(folder), "text_needle", **over_http, **settings)
        counted = running.get("/metrics")
    room = Room.of(policy(POLICY).amount, policy(POLICY).least)
    specs = {
        row["sample"]: f"snapkv:budget={room.kept(row['tokens'], BLOCK)}" for row in served.rows
    }
    methods = ",".join(dict.fromkeys(specs.values()))
    local = evaluate(str(folder), "text_needle", methods=methods, **settings)
    whole = {row["sample"]: row for row in local.rows if row["spec"] == "full"}
    for row in served.rows:
        assert (row["question"], row["tokens"]) == (
            whole[row["sample"]]["question"],
            whole[row["sample"]]["tokens"],
        )
    theirs, ours = answers(served.rows), answers(local.rows)
    same = {
        "full": sum(theirs[sample, "full"] == ours[sample, "full"] for sample in whole),
        POLICY: sum(theirs[sample, POLICY] == ours[sample, specs[sample]] for sample in whole),
    }
    print(same)
    assert all(count >= COUNT - 1 for count in same.values())  # rounding may turn one near tie
    assert len({theirs[sample, "full"] == theirs[sample, POLICY] for sample in whole}) == 2
    prompts = [line for line in counted.splitlines() if line.startswith("foveate:prompts_total")]
    assert {float(line.rpartition(" ")[2]) for line in prompts} == {float(COUNT)}
