"""The OpenAI-compatible server under a policy: an image question over HTTP."""

import json
import random
import re
import shutil
import time
import urllib.error
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import load_file, save_file

from foveate import policy
from foveate.vllm.plans.tiers import rooms_of
from tests.serving import tiny
from tests.serving.engine import check_alike
from tests.serving.prometheus import foveate_metrics, labelled
from tests.serving.server import data_url, server
from tests.serving.test_images import QUESTION, chat, noise, served

POLICY = "mixkv:budget=25%,window=8"
BOUNDED = "snapkv:budget=128,window=8,when=over_budget(every=64,reading=true)"
DOCUMENTED = "snapkv:budget=1024,when=over_budget(every=512,reading=true)"  # long_requests.md
TOKENS = 8
POISON = 201  # a token after which states are no numbers
METRICS = {"vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total"}


@pytest.fixture(scope="module")
def running(tiny_folder, tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "log.txt"
    options = (
        *("--served-model-name", "tiny", "--limit-mm-per-prompt", '{"image": 2, "video": 0}'),
        *("--additional-config", json.dumps({"foveate": {"policies": [BOUNDED]}})),
        *("--max-num-batched-tokens", "96"),
    )
    with server(tiny_folder("qwen2_vl"), POLICY, log, *options) as one:
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
        f"Foveate compresses the prompts of 4 layers (KV cache groups of 4): {POLICY} or {BOUNDED}"
    )
    pool = r", in 63 blocks of 32 tokens; metrics at /metrics\."
    assert re.search(re.escape(line) + pool, log.read_text())


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


def answered_at_once(one, clients, length, tokens, seed, **more):
    """How many of so many clients that ask at the same time are answered, by HTTP status."""
    draw = random.Random(seed)
    given = [[draw.randrange(5, 200) for _ in range(length)] for _ in range(clients)]

    def status(prompt):
        try:
            body = one.post(
                "/v1/completions",
                timeout=900,  # 32 clients share small steps, and maybe the machine
                **{"model": "tiny", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True},
                **more,
            )
        except urllib.error.HTTPError as error:
            return error.code
        return 200 if body["usage"]["completion_tokens"] == tokens else "too short"

    with ThreadPoolExecutor(clients) as pool:
        return Counter(pool.map(status, given))


@pytest.mark.parametrize("clients", [1, 8])
def test_prompts_that_are_compressed_while_they_are_read_are_all_answered(running, clients):
    """Each step reads less than what comes between two boundaries, of one client or of several."""
    chosen = {"vllm_xargs": {"foveate_policy": BOUNDED}}
    assert answered_at_once(running[0], clients, 500, 8, clients, **chosen) == {200: clients}


@pytest.mark.slow
@pytest.mark.parametrize("step", [32, 512, None])
def test_the_documented_bounded_policy_answers_every_client(tiny_folder, tmp_path, step):
    """Prompts of 4,000 tokens of up to 32 clients at once, under docs/howto/long_requests.md."""
    options = ["--served-model-name", "tiny", "--max-model-len", "4096", "--max-num-seqs", "32"]
    options += ["--num-gpu-blocks-override", "1600", "--kv-cache-memory-bytes", str(512 << 20)]
    options += [] if step is None else ["--max-num-batched-tokens", str(step)]
    log = tmp_path / "log.txt"
    with server(tiny_folder("qwen2_vl"), DOCUMENTED, log, *options) as one:
        for clients in (1, 4, 12, 32):
            assert answered_at_once(one, clients, 4000, 16, clients) == {200: clients}
        assert "fails:" not in log.read_text()


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
    token_bytes = 4 * 2 * 2 * 32 * 4  # of four layers with two heads of 32 numbers
    assert body["kv_transfer_params"]["foveate"] == {
        "kept_tokens": room.kept(length, 32),
        "kv_bytes": room.kept(length, 32) * token_bytes,
        "kv_bytes_full": length * token_bytes,
    }


def poisoned(model, folder):
    """The model's folder with a row of its embeddings that is no number."""
    shutil.copytree(model, folder)
    (file,) = folder.glob("*.safetensors")
    weights = load_file(file)
    (name,) = (name for name in weights if name.endswith("embed_tokens.weight"))
    weights[name][POISON] = torch.nan
    save_file(weights, file, {"format": "pt"})
    return str(folder)


def test_a_request_that_fails_says_why_and_is_counted(tiny_folder, tmp_path):
    """In the body of an error, and in the event of one that was streamed. The server is its own:
    answers may have the token as well.
    """
    model, log = poisoned(tiny_folder("qwen2_vl"), tmp_path / "model"), tmp_path / "log.txt"
    body = {"model": "tiny", "prompt": [*[5] * 200, POISON, *[7] * 60], "max_tokens": TOKENS}
    with server(model, POLICY, log, "--served-model-name", "tiny") as one:
        with pytest.raises(urllib.error.HTTPError) as failed:
            one.post("/v1/completions", **body)
        assert failed.value.code == 500
        errors = [json.load(failed.value)["error"]]
        with one.sending("/v1/completions", **body, stream=True) as connection:
            event = connection.getresponse().readline().removeprefix(b"data: ")
        errors.append(json.loads(event)["error"])
        whole = {"max_tokens": 1, "vllm_xargs": {"foveate_policy": "full"}}
        one.post("/v1/completions", **body | {"prompt": [5] * 100} | whole)
        text = one.get("/metrics")
    for error in errors:
        assert error["type"] == "InternalServerError"
        said = "Internal server error: its prompt cannot be compressed: "
        assert error["message"].startswith(said)
    assert labelled(text, "failed_requests") == {(POLICY, "compression"): 2}
    assert labelled(text, "prompts") == {(POLICY,): 2, ("full",): 1}
