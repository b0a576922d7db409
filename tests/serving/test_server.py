"""The OpenAI-compatible server under a policy: an image question over HTTP."""

import random
import re
import time
import urllib.error

import pytest

from foveate import policy
from foveate.backends.vllm.tiers import rooms_of
from tests.serving import tiny
from tests.serving.engine import check_alike
from tests.serving.prometheus import foveate_metrics
from tests.serving.server import data_url, server
from tests.serving.test_images import QUESTION, chat, noise, served

POLICY = "mixkv:budget=25%,window=8"
TOKENS = 8
METRICS = {"vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total"}


@pytest.fixture(scope="module")
def running(tiny_folder, tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "log.txt"
    limit = ("--limit-mm-per-prompt", '{"image": 2, "video": 0}')
    with server(tiny_folder("qwen2_vl"), POLICY, log, "--served-model-name", "tiny", *limit) as one:
        yield one, log
    assert not one.alive()


def asked(images):
    parts = [{"type": "image_url", "image_url": {"url": data_url(image)}} for image in images]
    said = {"type": "text", "text": QUESTION}
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": [*parts, said]}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }


def test_an_image_question_over_http_is_answered_as_offline(running, tiny_folder):
    """The OpenAI-compatible server, with images | works | policies by request in `vllm_xargs`"""
    one, log = running
    images = [noise(0, 420, 280), noise(2, 168, 224)]
    body = one.post("/v1/chat/completions", **asked(images))
    given = [{"prompt": chat(tiny.QWEN_IMAGE, 2), "multi_modal_data": {"image": images}}]
    offline = served(tiny_folder("qwen2_vl"), POLICY, given, TOKENS)
    assert body["prompt_token_ids"] == offline.answers[0].prompt
    check_alike([body["choices"][0]["token_ids"]], offline)
    assert offline.kept  # the policy was at work there
    line = (
        f"Foveate compresses the prompts of 4 layers (KV cache groups of 4): {POLICY}, in blocks of"
    )
    assert f"{line} 32 tokens; metrics at /metrics." in log.read_text()


def test_a_request_that_is_wrong_leaves_the_server_answering(running):
    one, _ = running
    with pytest.raises(urllib.error.HTTPError) as refused:
        one.post("/v1/chat/completions", **asked([]) | {"max_tokens": 10**6})
    assert refused.value.code == 400
    with pytest.raises(urllib.error.HTTPError) as refused:  # pydantic would make 1 of it
        one.post("/v1/chat/completions", **asked([]), vllm_xargs={"foveate_context": True})
    assert refused.value.code == 400
    assert "foveate_context=true" in refused.value.read().decode()
    assert one.post("/v1/chat/completions", **asked([]))["usage"]["completion_tokens"] == TOKENS


def test_requests_choose_over_http_and_are_told_what_is_wrong(running):
    """Everything, a context of several questions, and a policy that is not there."""
    one, _ = running
    whole = asked([noise(0, 420, 280)])
    before = foveate_metrics(one.get("/metrics"))
    one.post("/v1/chat/completions", **whole, vllm_xargs={"foveate_policy": "full"})
    full = foveate_metrics(one.get("/metrics"))
    kept, read = (full[name] - before.get(name, 0) for name in ("kept_tokens", "prompt_tokens"))
    assert kept == read
    shared = [
        one.post("/v1/chat/completions", **whole, vllm_xargs={"foveate_context": 150})
        for _ in range(2)
    ]
    assert shared[0]["choices"][0]["token_ids"] == shared[1]["choices"][0]["token_ids"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        one.post("/v1/chat/completions", **whole, vllm_xargs={"foveate_policy": "h2o"})
    assert refused.value.code == 400
    assert "foveate_policy='h2o' is not served here" in refused.value.read().decode()


def test_a_conversation_is_a_prompt_a_turn_which_begins_behind_what_is_shared(running):
    """All of the history comes with every turn (docs/serving.md, "Conversations"): its beginning is
    not computed again, and the answer is that of a client with whom nobody shares.
    """
    one, _ = running
    first = asked([noise(5, 420, 280)])
    (said,) = first["messages"]
    history = [
        said,
        {"role": "assistant", "content": "Seven."},
        {"role": "user", "content": "Why?"},
    ]
    for context in ({}, {"vllm_xargs": {"foveate_context": 128}}):
        before = one.post("/v1/chat/completions", **first, **context)["prompt_token_ids"]
        computed = hits(one)
        turn = one.post("/v1/chat/completions", **first | {"messages": history}, **context)
        assert turn["prompt_token_ids"][: len(before)] == before
        assert hits(one) > computed
        alone = first | {"messages": history, "cache_salt": "alone"}
        again = one.post("/v1/chat/completions", **alone, **context)
        assert again["choices"][0]["token_ids"] == turn["choices"][0]["token_ids"]


def hits(one):
    """Tokens that were found in the pool."""
    named = r"^vllm:prefix_cache_hits_total\{[^}]*\} ([\d.e+-]+)$"
    return sum(map(float, re.findall(named, one.get("/metrics"), re.M)))


def test_clients_that_go_away_leave_nothing_behind(running):
    """Twenty, at random moments of an answer that is streamed to them."""
    one, _ = running
    draw = random.Random(0)
    for seed in range(20):
        body = asked([noise(seed, 420, 280)]) | {"max_tokens": 400, "stream": True}
        with one.sending("/v1/chat/completions", **body) as connection:
            time.sleep(draw.uniform(0, 0.4))
            connection.close()
    end = time.monotonic() + 60
    while time.monotonic() < end and (used := usage(one)) != (0, 0, 0):
        time.sleep(0.2)
    assert used == (0, 0, 0)
    assert one.post("/v1/chat/completions", **asked([]))["usage"]["completion_tokens"] == TOKENS


def usage(one):
    """Requests that run and that wait, and the share of the pool that they hold."""
    found = dict(re.findall(r"^([\w:]+)(?:\{[^}]*\})? ([\d.e+-]+)$", one.get("/metrics"), re.M))
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    return tuple(float(found[f"vllm:{name}"]) for name in names)


def test_the_servers_metrics_can_be_read_and_tell_what_was_kept(running):
    one, _ = running
    before = foveate_metrics(one.get("/metrics"))
    body = one.post("/v1/chat/completions", **asked([noise(0, 420, 280)]))
    text = one.get("/metrics")
    found = dict(re.findall(r"^([\w:]+)(?:\{[^}]*\})? ([\d.e+-]+)$", text, re.M))
    assert found.keys() >= METRICS
    assert float(found["vllm:generation_tokens_total"]) >= TOKENS
    after, length = foveate_metrics(text), body["usage"]["prompt_tokens"]
    grown = {name: after[name] - before.get(name, 0) for name in after}
    ((room,),) = rooms_of([policy(POLICY)], 1, 1, longest=length)
    assert grown["prompts"] == 1
    assert grown["prompt_tokens"] == length
    assert grown["kept_tokens"] == room.kept(length, 32) < length
    assert grown["freed_blocks"] == room.gap(length, 32)
    assert grown["compress_seconds"] > 0
