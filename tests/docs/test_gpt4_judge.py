"""The example judge asks a server of OpenAI's API, here a stub on this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.mm_vet import graded
from foveate_lab.eval.judge import find_judge

pytest.importorskip("openai", reason="the judge of the example needs openai")
EXAMPLES = Path(__file__).parents[2] / "examples"


class Stub(HTTPServer):
    """A server that is busy once, and then grades every answer with 0.7."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, str, dict[str, Any]]] = []


class Handler(BaseHTTPRequestHandler):
    server: Stub

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, self.headers["Authorization"], body))
        busy = len(self.server.requests) == 1
        message = {"role": "assistant", "content": "0.7"}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        reply = {"id": "1", "object": "chat.completion", "created": 0, "choices": [choice]}
        content = json.dumps({**reply, "model": body["model"]}).encode()
        self.send_response(429 if busy else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Retry-After", "0")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: Any) -> None:
        """Write nothing to stderr."""


@pytest.fixture
def stub() -> Iterator[Stub]:
    with Stub() as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_answers_are_graded_through_the_client(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{stub.server_port}/v1")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "gpt4_judge", raising=False)
    judge = find_judge("gpt4_judge:ask")
    sample = Sample(
        name="v1", question="What is odd?", answers=("a hare",), facts={"prompt": "Grade."}
    )
    try:
        assert graded(judge, "a rabbit", sample) == 0.7
    finally:
        sys.modules["gpt4_judge"].client().close()
        del sys.modules["gpt4_judge"]
    assert len(stub.requests) == 2
    path, key, body = stub.requests[-1]
    assert (path, key) == ("/v1/chat/completions", "Bearer key")
    assert body == {
        "model": "gpt-4-0613",
        "messages": [
            {"role": "user", "content": "Grade.\nWhat is odd? | a hare | a rabbit | "},
        ],
        "temperature": 0.0,
    }
