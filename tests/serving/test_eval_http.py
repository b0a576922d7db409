"""``foveate eval --executor http`` against the server: the same questions as in this process."""

import pytest

from foveate.loading.model import load
from foveate_lab import evaluate
from tests.serving.server import server

POLICY = "snapkv:budget=50%"
COUNT = 8
ROOM = ("--num-gpu-blocks-override", "128", "--kv-cache-memory-bytes", str(512 << 20))


@pytest.mark.slow
def test_a_trained_model_answers_over_http_as_in_this_process(tmp_path):
    """Whole prompts give equal answers; compressed ones, which keep up to a block more, most."""
    folder, settings = tmp_path / "smollm2", {"limit": COUNT, "methods": POLICY, "timed": 0}
    loaded = load("smollm2")
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    with server(str(folder), POLICY, tmp_path / "log.txt", *ROOM) as running:
        url = f"{running.url}/v1"
        served = evaluate(str(folder), "text_needle", executor="http", url=url, **settings)
        counted = running.get("/metrics")
    local = evaluate(str(folder), "text_needle", **settings)
    assert [row["question"] for row in served.rows] == [row["question"] for row in local.rows]
    assert [row["tokens"] for row in served.rows] == [row["tokens"] for row in local.rows]
    pairs = list(zip(served.rows, local.rows, strict=True))
    same = {
        spec: [a["prediction"] == b["prediction"] for a, b in pairs if a["spec"] == spec]
        for spec in ("full", POLICY)
    }
    print({spec: f"{sum(each)} of {len(each)}" for spec, each in same.items()})
    assert sum(same["full"]) >= COUNT - 1  # float rounding may turn a near tie
    assert sum(same[POLICY]) >= COUNT // 2
    assert {row["score"] for row in served.rows if row["spec"] == "full"} != {0.0}
    prompts = [line for line in counted.splitlines() if line.startswith("foveate:prompts_total")]
    assert {float(line.rpartition(" ")[2]) for line in prompts} == {float(COUNT)}
