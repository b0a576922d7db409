"""The example of a server, used through OpenAI's client."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any

import pytest

from tests import zoo

from .busy import SPEC, chat_of
from .conversations import LETTERS, image
from .families import talker
from .test_complete import spoken, url

openai = pytest.importorskip("openai")
uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

EXAMPLE = Path(__file__).parents[2] / "examples" / "openai_server.py"
LETTERS_ONLY: dict[str, Any] = {
    "suppress_tokens": [token for token in range(zoo.VOCAB) if token not in LETTERS],
    "do_sample": False,
}
TURNS = 20


def example() -> Any:
    spec = importlib.util.spec_from_file_location("openai_server", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["openai_server"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", params=["llava", "qwen2_vl"])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any]]:
    """A family, and a client of a server of its model."""
    who = talker(request.param)
    app = (
        example()
        .Server(who.model, who.processor, SPEC, "tiny", stored=3 * TURNS, **LETTERS_ONLY)
        .app
    )
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    until = monotonic() + 30
    while not server.started and monotonic() < until:
        sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
        yield request.param, client
    server.should_exit = True
    thread.join(30)


def question(number: int, turn: int) -> dict[str, Any]:
    """The user's message of a turn of a conversation; some have an image."""
    text = {"type": "text", "text": f"Question {turn} of {number}?"}
    shown = {"type": "image_url", "image_url": {"url": url((turn + number) % 4)}}
    return {"role": "user", "content": [shown, text] if turn % 7 == 0 else text["text"]}


def talk(client: Any, number: int) -> tuple[list[Any], list[Any]]:
    """A conversation; every second answer is streamed. Its messages and usages."""
    messages, usages = [], []
    for turn in range(TURNS):
        messages.append(question(number, turn))
        request = {"model": "tiny", "messages": messages, "max_completion_tokens": 4}
        if turn % 2:
            chunks = list(
                client.chat.completions.create(
                    **request, stream=True, stream_options={"include_usage": True}
                )
            )
            text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
            assert chunks[-2].choices[0].finish_reason == "length"
            usages.append(chunks[-1].usage)
        else:
            completion = client.chat.completions.create(**request)
            text = completion.choices[0].message.content
            assert completion.choices[0].finish_reason == "length"
            usages.append(completion.usage)
        messages.append({"role": "assistant", "content": text})
    return messages, usages


def test_two_conversations_at_once_reuse_all_but_the_new_message(served: tuple[str, Any]) -> None:
    name, client = served
    with ThreadPoolExecutor(2) as pool:
        talks = list(pool.map(lambda number: talk(client, number), (1, 2)))
    for number, (messages, usages) in enumerate(talks, start=1):
        assert usages[0].prompt_tokens_details.cached_tokens == 0
        for before, after in pairwise(usages):
            shared = before.total_tokens - 1  # the last token of an answer was not read yet
            assert after.prompt_tokens_details.cached_tokens == shared
            assert after.total_tokens == after.prompt_tokens + 4
        alone = chat_of(talker(name), **LETTERS_ONLY)
        for turn in range(TURNS):
            images = [image((turn + number) % 4)] if turn % 7 == 0 else []
            text = f"Question {turn} of {number}?"
            answer = alone.say(text, images=images, max_new_tokens=4)
            assert messages[2 * turn + 1]["content"].strip() == answer.text
        assert alone._now.ids.shape[1] == usages[-1].total_tokens
    messages, usages = talks[0]
    other = [*messages[:6], {"role": "user", "content": "Something else?"}]
    completion = client.chat.completions.create(model="tiny", messages=other, max_tokens=4)
    shared = usages[2].total_tokens - 1
    assert completion.usage.prompt_tokens_details.cached_tokens == shared


def test_an_answer_stops_when_its_client_leaves(served: tuple[str, Any]) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    stream = served[1].chat.completions.create(
        model="tiny", messages=messages, max_tokens=10**6, stream=True
    )
    next(chunk for chunk in stream if chunk.choices[0].delta.content)
    stream.close()
    completion = (
        served[1]
        .with_options(timeout=60, max_retries=0)
        .chat.completions.create(model="tiny", messages=messages, max_tokens=3)
    )
    assert completion.usage.completion_tokens == 3


def test_the_usage_counts_the_end_token() -> None:
    who = talker("llava")
    chat = chat_of(who, keep_turns=0)
    answer = chat.say("Hello", **spoken("Yes", who.eos))
    usage = example().usage_of(answer)
    assert usage["completion_tokens"] == 4
    assert usage["prompt_tokens"] == chat._now.ids.shape[1] - 3


def test_models_are_listed(served: tuple[str, Any]) -> None:
    assert [model.id for model in served[1].models.list()] == ["tiny"]


BAD: dict[str, Any] = {
    "a file": [{"type": "image_url", "image_url": {"url": "/etc/passwd"}}],
    "an address": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/"}}],
    "two sources": [{"type": "image_url", "image_url": {"url": url(0)}, "image": "/etc/passwd"}],
    "a source of Foveate's": [{"type": "image", "image": "/etc/passwd"}],
    "a video": [{"type": "video", "video": "/etc/passwd"}],
    "a part alone": {"type": "image", "image": "/etc/passwd"},
    "no image": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_images_are_refused(served: tuple[str, Any], content: Any, stream: bool) -> None:
    messages = [{"role": "user", "content": content}]
    with pytest.raises(openai.BadRequestError, match=r"part|data:|image"):
        served[1].chat.completions.create(model="tiny", messages=messages, stream=stream)


def test_what_is_not_supported_is_refused(served: tuple[str, Any]) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    for how in ({"n": 2}, {"stop": ["x"]}, {"temperature": "hot"}, {"max_tokens": -1}):
        with pytest.raises(openai.BadRequestError, match=r"not supported|0 or more"):
            served[1].chat.completions.create(model="tiny", messages=messages, **how)
