"""``foveate eval --executor http``: against a stand-in of a server, which can be made to fail."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from foveate.errors import InvalidParameter, ServerFailed
from foveate_lab import evaluate
from foveate_lab.eval import Sample, Task
from foveate_lab.eval.executors import client
from foveate_lab.eval.metrics import exact
from foveate_lab.report.page import page

SERVED = ("mixkv:budget=20%", "snapkv:window=4,budget=50%")
METRICS = "# TYPE foveate:prompts counter\n" + "".join(
    f'foveate:prompts_total{{engine="0",model_name="tiny",policy="{name}"}} 0.0\n'
    for name in ("full", *SERVED)
)
KEPT = {"kept_tokens": 6.5, "kv_bytes": 130, "kv_bytes_full": 600}
TOKENS = {"full": [7, 8, 9], "mixkv:budget=20%": [7, 8, 9]}  # others answer [7, 5]


class StandIn:
    """A server whose answers are "yes" with the full cache, and "no" under other policies but
    mixkv. ``failures`` are the statuses of the next requests.
    """

    def __init__(self, metrics: str = METRICS):
        self.metrics, self.bodies = metrics, list[dict[str, Any]]()
        self.failures = list[int]()
        self.statuses: dict[str, int] = {}  # by a word of the question, for good
        self.together: threading.Barrier | None = None

    def reply(self, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        if body is None:
            paths = {"/v1/models": {"data": [{"id": "tiny"}]}, "/metrics": self.metrics}
            return (200, paths[path]) if paths.get(path) else (404, {"message": "no such page"})
        self.bodies.append(body)
        if self.together is not None:
            self.together.wait(timeout=20)
        status = next((s for word, s in self.statuses.items() if word in json.dumps(body)), 0)
        if status or self.failures:
            return status or self.failures.pop(0), {"error": {"message": "not now"}}
        policy = body.get("vllm_xargs", {}).get("foveate_policy", "full")
        text = "yes" if policy in TOKENS else "no"
        choice = {"text": text} if path == "/v1/completions" else {"message": {"content": text}}
        reply = {"choices": [choice], "usage": {"prompt_tokens": 30}, "kv_transfer_params": None}
        if "vllm_xargs" in body:
            choice["token_ids"] = TOKENS.get(policy, [7, 5])
            reply["kv_transfer_params"] = {"foveate": KEPT}
        return 200, reply


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(client.time, "sleep", lambda seconds: None)
    server = StandIn()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(*server.reply(self.path, None))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._send(*server.reply(self.path, body))

        def _send(self, status: int, content: Any) -> None:
            text = content if isinstance(content, str) else json.dumps(content)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *arguments: Any) -> None:
            """Stay silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        server.url = f"http://127.0.0.1:{listening.server_address[1]}/v1"  # type: ignore[attr-defined]
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield server
        listening.shutdown()
        thread.join()


IMAGE = Image.new("RGB", (3, 2), (10, 200, 30))
QUESTIONS = Task(
    "yes_or_no",
    "Whether something is green.",
    lambda count, seed: (
        Sample(str(n), f"Is page {n} green?", ("yes",), images=(IMAGE,)) for n in range(count)
    ),
    exact,
    longest=3,
)


def asked(stand_in: Any, methods: str = "mixkv,snapkv:window=4", **settings: Any) -> Any:
    chosen: dict[str, Any] = {"tasks": [QUESTIONS], "limit": 4, **settings}
    return evaluate(executor="http", url=stand_in.url, methods=methods, **chosen)


def test_a_server_is_asked_under_each_policy_and_its_rows_have_the_form_of_others(
    stand_in: Any, tmp_path: Path, directory: str
) -> None:
    result = asked(stand_in, budgets="20%,50%", limit=2, out=tmp_path / "served")
    specs = ["full", "mixkv:budget=20%", "mixkv:budget=50%", "snapkv:budget=20%,window=4"]
    specs.append("snapkv:budget=50%,window=4")
    assert [row["spec"] for row in result.rows] == 2 * specs
    chosen = Counter(json.dumps(body["vllm_xargs"]) for body in stand_in.bodies)
    assert chosen == Counter(
        {
            json.dumps({"foveate_policy": policy} | budget): 2
            for policy, budget in (
                ("full", {}),
                (SERVED[0], {}),
                (SERVED[0], {"foveate_budget": "50%"}),
                (SERVED[1], {"foveate_budget": "20%"}),
                (SERVED[1], {}),
            )
        }
    )
    first = stand_in.bodies[0]
    assert (first["model"], first["max_tokens"], first["temperature"]) == ("tiny", 3, 0)
    image, text = first["messages"][0]["content"]
    sent = base64.b64decode(image["image_url"]["url"].partition(",")[2])
    assert Image.open(io.BytesIO(sent)).tobytes() == IMAGE.tobytes()
    assert text["text"].endswith("green?")
    scores = {(row["spec"], row["score"], row["first_divergence"]) for row in result.rows}
    assert ("mixkv:budget=20%", 1.0, None) in scores
    assert ("snapkv:budget=50%,window=4", 0.0, 1) in scores
    local = evaluate(directory, [QUESTIONS], methods="knorm", budgets="50%", limit=1, timed=0)
    assert result.rows[0].keys() == local.rows[0].keys()
    assert all(row["spent_s"] > 0 for row in result.rows)
    assert all(row[name] == number for row in result.rows for name, number in KEPT.items())
    cells = {cell.spec: cell for cell in result.summary}
    assert (cells["mixkv:budget=20%"].same, cells["mixkv:budget=20%"].odd) == (1.0, 0)
    assert cells["snapkv:budget=50%,window=4"].same == 0.0
    assert "same answers" in page(tmp_path / "served")


def test_what_fails_for_now_is_asked_again_and_what_fails_for_good_is_a_row(
    stand_in: Any, tmp_path: Path
) -> None:
    stand_in.failures = [429, 500, 503, 502]
    assert not asked(stand_in, limit=2).refused
    assert len(stand_in.bodies) == 2 * 3 + 4
    stand_in.statuses = {"page 1 ": 503, "page 2 ": 400}
    out = tmp_path / "served"
    result = asked(stand_in, out=out)
    errors = {row["sample"]: row["error"]["message"] for row in result.rows if "error" in row}
    assert errors == {"1": "status 503: not now", "2": "status 400: not now"}
    assert len(result.rows) == 4 * 3
    stand_in.statuses, before = {}, len(stand_in.bodies)
    again = asked(stand_in, out=out, resume=True)
    assert not again.refused
    assert len(stand_in.bodies) - before == 2 * 3
    assert len(again.rows) == 4 * 3


def test_as_many_samples_as_workers_are_in_flight(stand_in: Any) -> None:
    stand_in.together = threading.Barrier(3)
    result = asked(stand_in, methods="full", limit=6, workers=3)
    assert [row["sample"] for row in result.rows] == list("012345")


def test_a_server_that_is_not_foveates_answers_with_its_full_cache_alone(stand_in: Any) -> None:
    stand_in.metrics = ""
    result = asked(stand_in, methods="full")
    assert {row["score"] for row in result.rows} == {1.0}
    assert all("vllm_xargs" not in body for body in stand_in.bodies)
    assert all(row[name] is None for row in result.rows for name in KEPT)
    with pytest.raises(InvalidParameter, match=r"is not foveate serve.*--methods full"):
        asked(stand_in)


def test_what_a_server_cannot_do_is_refused_with_the_way_out(stand_in: Any) -> None:
    for settings, match in (
        ({"methods": "h2o"}, r"h2o:budget=20% is not served.*--policies 'h2o:budget=20%'"),
        ({"model": "other"}, "'other' is not served at .* Choose one of tiny"),
        ({"protocol": "query-agnostic"}, "needs the tokens of a context"),
        ({"batch": 2, "timed": 0}, "--batch does not work with --executor http"),
        ({"longest_prompt": 20}, "--longest-prompt does not work with --executor http"),
        ({"strict": True}, "--strict does not work with --executor http"),
        ({"device_map": "auto"}, "--device-map and --trust-remote-code are the server's"),
    ):
        with pytest.raises(InvalidParameter, match=match):
            asked(stand_in, **settings)
    for url in (None, "localhost:8000"):
        with pytest.raises(InvalidParameter, match="needs the address of a server"):
            evaluate(tasks=[QUESTIONS], executor="http", url=url)
    with pytest.raises(InvalidParameter, match="is for --executor http"):
        evaluate(tasks=[QUESTIONS], url=stand_in.url)
    stand_in.url += "/nowhere"
    with pytest.raises(ServerFailed, match="refuses requests, status 404: no such page"):
        asked(stand_in)
    stand_in.url = "http://127.0.0.1:9/v1"
    with pytest.raises(ServerFailed, match=r"cannot be reached .*--resume"):
        asked(stand_in)
