"""``foveate serve`` while answers are streamed: whatever ends it, nothing is left of it."""

import contextlib
import json
import os
import signal
import tempfile
import time
import urllib.error

import psutil
import pytest

from tests.serving.server import free_port, started

POLICY = "knorm:budget=25%"
WITHIN = 10  # seconds, where nothing else runs
OPTIONS = ("--served-model-name", "tiny", "--host", "127.0.0.1", "--dtype", "float32")
OPTIONS += ("--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "8", "--block-size")
OPTIONS += ("32", "--num-gpu-blocks-override", "64", "--kv-cache-memory-bytes", str(64 << 20))
OPTIONS += ("--limit-mm-per-prompt", '{"image": 0, "video": 0}')
ASKED = {"model": "tiny", "prompt": [5] * 200, "temperature": 0, "ignore_eos": True}


@contextlib.contextmanager
def serving(model, folder, port, *options):
    """``foveate serve`` under a policy of the environment, with temporary files in that folder."""
    folder.mkdir()
    words = ("foveate", "serve", model, *OPTIONS, *options)
    environ = {"TMPDIR": str(folder), "FOVEATE_POLICY": POLICY, "PROMETHEUS_MULTIPROC_DIR": ""}
    sockets = {"VLLM_RPC_BASE_PATH": tempfile.gettempdir()}  # whose paths have to be short
    with started(words, folder / "log.txt", port, environ | sockets) as one:
        yield one


@contextlib.contextmanager
def streams(one, number=3):
    """Clients that have been sent the first of many tokens."""
    with contextlib.ExitStack() as stack:
        for _ in range(number):
            body = ASKED | {"max_tokens": 800, "stream": True, "return_token_ids": True}
            connection = stack.enter_context(one.sending("/v1/completions", **body))
            assert connection.getresponse().readline().startswith(b"data:")
        yield


def left(processes, folder):
    """Processes that run, and folders of counters."""
    alive = [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    return [*alive, *folder.glob("foveate-*")]


def check_nothing_is_left(processes, folder):
    end = time.monotonic() + WITHIN * max(1, os.getloadavg()[0] / os.cpu_count())
    while (found := left(processes, folder)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not found


@pytest.mark.slow  # four servers are started
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_after_a_signal_nothing_is_left_and_the_port_is_free(tiny_folder, tmp_path, number):
    """First after SIGKILL, while clients go on reading; then after one that asks, as they leave."""
    port, model = free_port(), tiny_folder("qwen2_vl")
    killed, asked = tmp_path / "killed", tmp_path / "asked"
    with serving(model, killed, port) as one, streams(one):
        whole = family(one)
        assert len(whole) >= 3  # foveate, the server, the engine
        assert list(killed.glob("foveate-*"))
        os.kill(one.process.pid, signal.SIGKILL)
        one.process.wait()
        check_nothing_is_left(whole, killed)
    with serving(model, asked, port) as one:
        whole = family(one)
        with streams(one):
            os.kill(one.process.pid, number)
        check_nothing_is_left(whole, asked)


def family(one):
    """The processes that it is."""
    first = psutil.Process(one.process.pid)
    return [first, *first.children(recursive=True)]


def wait_until_it_drains(log):
    end = time.monotonic() + WITHIN * max(1, os.getloadavg()[0] / os.cpu_count())
    while "EngineCore: start mode=drain" not in log.read_text():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_server_that_drains_ends_its_answers_after_sigterm(tiny_folder, tmp_path):
    """docs/howto/kubernetes.md: new requests get 503, open ones are answered to their end."""
    port, folder, drained = free_port(), tmp_path / "drained", ("--shutdown-timeout", "120")
    with serving(tiny_folder("qwen2_vl"), folder, port, *drained) as one:
        whole = family(one)
        body = ASKED | {"max_tokens": 800, "stream": True, "return_token_ids": True}
        with one.sending("/v1/completions", **body) as connection:
            answer = connection.getresponse()
            lines = [answer.readline()]
            os.kill(one.process.pid, signal.SIGTERM)
            wait_until_it_drains(folder / "log.txt")
            for streamed in (False, True):
                with pytest.raises(urllib.error.HTTPError, match="503") as refused:
                    one.post("/v1/completions", **ASKED | {"stream": streamed})
                assert "shutting down" in json.load(refused.value)["error"]["message"]
            lines += answer.read().splitlines()
        events = [line.removeprefix(b"data: ") for line in lines if line.strip()]
        assert events.pop() == b"[DONE]"
        choices = [json.loads(event)["choices"][0] for event in events]
        assert sum(len(choice["token_ids"]) for choice in choices) == 800
        assert choices[-1]["finish_reason"] == "length"
        assert one.process.wait(60) == 0  # vLLM gives idle workers up to 15 seconds
        check_nothing_is_left(whole, folder)
