"""One model, several chats, streams and threads: turns in the order of the calls, and no hang."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LogitsProcessorList, dynamic_module_utils

import foveate
from foveate.custom_generate import FOLDER
from foveate.errors import AlreadyCompressing, FoveateError, InvalidInput
from tests import zoo
from tests.core.users import unchecked

from .busy import SPEC, busy, calling, chat_of, within
from .conversations import Spoken, image, words
from .families import talker

PEFT_WARNS = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
SHORT: dict[str, Any] = {"max_new_tokens": 3, "do_sample": False}
ROOT = Path(__file__).parents[2]


def test_a_stream_is_returned_while_another_chat_answers_and_turns_run_in_order() -> None:
    first, order = chat_of(talker("llava")), []
    others = [first.fork() for _ in range(3)]
    with busy(first) as went_on:
        streams = [
            other.say(
                "Next",
                stream=True,
                logits_processor=calling(lambda i=i: order.append(i)),
                max_new_tokens=4,
            )
            for i, other in enumerate([*others, others[0]])
        ]
        assert not went_on.is_set()
    assert [within(lambda s=stream: s.answer).text != "" for stream in streams] == [True] * 4
    assert order == [0, 1, 2, 3]
    assert [len(other.messages) for other in others] == [4, 2, 2]


def test_a_chat_that_waits_can_be_stopped() -> None:
    first = chat_of(talker("llava"))
    second = first.fork()
    with busy(first) as went_on:
        waiting = second.say("Next", stream=True, max_new_tokens=40, eos_token_id=None)
        second.stop()
        assert not went_on.is_set()
    answer = within(lambda: waiting.answer)
    assert answer.ended == "stopped"
    assert len(answer.ids) <= 1
    assert len(within(lambda: second.say("Go on", **SHORT)).ids) > 1


def test_what_needs_no_model_is_refused_at_the_call_while_the_model_is_busy() -> None:
    first = chat_of(talker("llava"))
    second = first.fork()
    with busy(first) as went_on:
        for chat in (first, second):  # one has a turn that has not ended, the other has none
            with pytest.raises(InvalidInput, match=r"none\.png"):
                chat.say("Look", images=["none.png"], stream=True)
            with pytest.raises(FoveateError, match=r"max_new_token=.*max_new_tokens"):
                chat.say("Look", stream=True, max_new_token=3)
        branch = second.fork()
        assert not went_on.is_set()
    within(lambda: branch.say("Go on", **SHORT))


WAYS_IN: dict[str, Callable[[foveate.Chat], Any]] = {
    "itself": lambda chat: chat.say("Again"),
    "a stream": lambda chat: chat.say("Again", stream=True),
    "a fork": lambda chat: chat.fork().say("Again"),
    "a pipeline": lambda chat: foveate.Pipeline(*chat._turns.answerer[:2])("A", question="B"),
    "a context": lambda chat: foveate.compress(chat._turns.answerer.model, SPEC).__enter__(),
}


@pytest.mark.parametrize("way", WAYS_IN)
@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_is_used_from_a_callback_of_its_answer_raises(way: str, stream: bool) -> None:
    chat = chat_of(talker("llava"))

    def say() -> Any:
        answer = chat.say(
            "Hello",
            logits_processor=calling(lambda: WAYS_IN[way](chat)),
            max_new_tokens=4,
            stream=stream,
        )
        return answer.answer if stream else answer

    with pytest.raises(AlreadyCompressing):
        within(say)
    assert chat.messages == []
    within(lambda: chat.say("Hello", **SHORT))


def test_a_stream_of_frames_waits_for_a_chat_and_refuses_its_callbacks() -> None:
    who = talker("qwen2_vl")
    chat = chat_of(who)
    stream = foveate.Stream(who.model, who.processor, "snapkv:budget=40,window=4")
    with busy(chat):
        thread = threading.Thread(target=lambda: stream.see(image(0)), daemon=True)
        thread.start()
        late = foveate.Stream(who.model, who.processor, "snapkv:budget=40,window=4")
    within(thread.join)
    assert stream.held.images == 1
    assert late.held.images == 0
    with pytest.raises(AlreadyCompressing, match="is answering in this thread"):
        within(
            lambda: stream.ask(
                "What?", logits_processor=calling(lambda: stream.see(image(1))), max_new_tokens=4
            )
        )
    assert within(lambda: stream.see(image(1))).images == 2


def test_a_thread_that_does_not_start_leaves_the_model_usable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chat = chat_of(talker("llava"))
    with monkeypatch.context() as patched:

        def fail(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        patched.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="start new thread"):
            chat.say("Hello", stream=True)
    assert within(lambda: chat.say("Hello", **SHORT)).text
    assert len(chat.messages) == 2


ENDS_EARLY = """
import os, sys, foveate
from tests.chat.families import talker

who = talker("llava")
for more in ("alone", "queued"):  # in processes of their own, whose imports are made
    if os.fork():
        print(more, os.waitstatus_to_exitcode(os.wait()[1]))
        continue
    chat = foveate.Chat(who.model, who.processor)
    stream = chat.say("x", stream=True, max_new_tokens=3000, eos_token_id=None)
    if more == "queued":
        waiting = chat.fork().say("y", stream=True, max_new_tokens=3000, eos_token_id=None)
    pieces = iter(stream)
    next(pieces)
    sys.exit(7)
"""


def test_a_program_may_end_while_an_answer_streams() -> None:
    """One answer, and one behind which another waits."""
    ended = subprocess.run(
        [sys.executable, "-u", "-c", ENDS_EARLY],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.splitlines() == ["alone 7", "queued 7"], ended.stderr
    assert "terminate" not in ended.stderr, ended.stderr


@PEFT_WARNS
@unchecked()  # a PeftModel is no PreTrainedModel
def test_a_model_and_its_adapted_one_take_turns() -> None:
    peft = pytest.importorskip("peft")
    who = talker("llava")
    model = zoo.fresh("llava")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, config).eval()
    base = chat_of(who._replace(model=model))
    other = chat_of(who._replace(model=adapted))
    with busy(base):
        waiting = other.say("Next", stream=True, **SHORT)
    assert within(lambda: waiting.answer).text
    assert [len(chat.messages) for chat in (base, other)] == [2, 2]


def test_custom_generate_waits_for_other_threads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    who = talker("llava")
    inputs = who.processor(text="What is it? " * 9, return_tensors="pt")

    def generate() -> torch.Tensor:
        tokens: torch.Tensor = who.model.generate(
            **inputs,
            custom_generate=FOLDER,
            trust_remote_code=True,
            policy=SPEC,
            logits_processor=LogitsProcessorList([Spoken(words(1))]),
            max_new_tokens=4,
            do_sample=False,
        )
        return tokens

    alone = generate()
    chat, found = chat_of(who), []
    with busy(chat):
        threads = [
            threading.Thread(target=lambda: found.append(generate()), daemon=True) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
    for thread in threads:
        within(thread.join)
    assert [torch.equal(tokens, alone) for tokens in found] == [True] * 3
    assert len(chat.messages) == 2
