"""Messages in every form in which users have them; what would not reach the model is refused."""

from __future__ import annotations

import base64
import copy
import io
from typing import Any

import numpy as np
import pytest
import torch

import foveate
from foveate.errors import InvalidInput, InvalidParameter
from foveate.loading.model import Loaded
from foveate.prompts.prompt import read_chat
from foveate.prompts.template import Wording
from foveate.stream import Words
from tests import zoo
from tests.chat.conversations import Record, image
from tests.chat.families import talker
from tests.chat.test_videos import clip
from tests.chat.test_words import STRINGS
from tests.core.users import unchecked
from tests.stream import tiny
from tests.zoo.directory import tokenizer as text_tokenizer

SHORT = {"max_new_tokens": 3, "do_sample": False}
WITH_IMAGES = """\
{%- for m in messages -%}{{- m.role + ': ' -}}
{%- if m.content is string -%}{{- m.content -}}{%- else -%}
{%- for c in m.content -%}{{- '<image>' if c.type == 'image' else c.text -}}{%- endfor -%}
{%- endif -%}{{- '\\n' -}}{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'assistant: ' -}}{%- endif -%}"""


def chat(name: str = "llava", **how: Any) -> foveate.Chat:
    return foveate.Chat(*talker(name)[:2], "snapkv:budget=100%,window=4", **how)


def ids_of(chat: foveate.Chat) -> torch.Tensor:
    return chat._now.ids


def text_chat(template: str) -> foveate.Chat:
    """A chat with a model that reads text only."""
    words = text_tokenizer()
    words.chat_template = template
    return foveate.Chat(zoo.build("llama"), words, "full")


def address(number: int) -> str:
    """An image as OpenAI's API has it."""
    file = io.BytesIO()
    image(number).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def parts_of_openai() -> dict[str, list[dict[str, Any]]]:
    return {
        "chat completions": [
            {"type": "image_url", "image_url": {"url": address(0)}},
            {"type": "text", "text": "What?"},
        ],
        "responses": [
            {"type": "input_image", "image_url": address(0)},
            {"type": "input_text", "text": "What?"},
        ],
    }


@pytest.mark.parametrize("api", parts_of_openai())
def test_messages_of_openai_are_read_as_the_processors_own(api: str) -> None:
    ours, theirs = chat(), chat()
    ours.say([{"role": "user", "content": parts_of_openai()[api]}], **SHORT)
    theirs.say("What?", images=image(0), **SHORT)
    assert torch.equal(ids_of(ours), ids_of(theirs))


def test_a_single_clip_is_a_list_of_one() -> None:
    ours, theirs = chat("qwen2_5_vl"), chat("qwen2_5_vl")
    film = clip(0, (0.0, 0.5))
    ours.say("What?", videos=film, **SHORT)
    theirs.say("What?", videos=[film], **SHORT)
    assert torch.equal(ids_of(ours), ids_of(theirs))


def test_frames_of_a_video_are_the_same_in_every_form() -> None:
    who, film = talker("qwen2_vl"), clip(0, (0.0, 0.5))
    given = []
    for video in (film.frames, film.frames.transpose(0, 3, 1, 2), [*film.images]):
        record = Record()
        with record.listening():
            record.of(foveate.Chat(*who[:2]), 0, None, "What?", videos=[video])
        given.append(record.given[0]["pixel_values_videos"])
    assert torch.equal(given[0], given[1])
    assert torch.equal(given[0], given[2])


def test_a_chat_goes_on_from_its_whole_history() -> None:
    """As servers without a memory get it: all messages, each time."""
    history: list[Any] = []
    stateless, stateful = chat(), chat()
    system: Any = "Be kind"  # in the first request alone
    for number, text in enumerate(("What is it?", "And this?")):
        parts = [{"type": "image", "image": image(number)}, {"type": "text", "text": text}]
        history.append({"role": "user", "content": parts})
        answer = stateless.say(history, system=system, **SHORT)
        history.append({"role": "assistant", "content": answer.text})
        stateful.say(text, images=[image(number)], system=system, **SHORT)
        system = None
    assert torch.equal(ids_of(stateless), ids_of(stateful))
    assert [one["role"] for one in stateless.messages] == [
        *("system", "user", "assistant", "user", "assistant")
    ]
    with pytest.raises(InvalidInput, match="without a new one: add a message"):
        stateless.say(history)
    more = {"role": "user", "content": "Why?"}
    other_text = [{"role": "user", "content": "No"}, *history[1:], more]
    parts = [{"type": "image", "image": image(3)}, *history[0]["content"][1:]]
    other_image = [{"role": "user", "content": parts}, *history[1:], more]
    for other in (other_text, other_image):
        with pytest.raises(InvalidInput, match=r"these messages differ .* from messages\[0\] on"):
            stateless.say(other)
    with pytest.raises(InvalidInput, match=r"from messages\[2\] on. Give only those after"):
        stateless.say([*history[:2], more])
    with pytest.raises(InvalidInput, match="images= and videos= need a text"):
        stateless.say([*history, more], images=image(0))
    assert len(stateless.messages) == 5


@pytest.mark.parametrize("name", ["qwen2_vl", "llava", "gemma3", "internvl"])
def test_a_tokenizer_in_the_place_of_a_processor_drops_no_image(name: str) -> None:
    who = talker(name)
    words = copy.copy(who.processor.tokenizer)
    words.chat_template = who.processor.chat_template
    blind = foveate.Chat(who.model, words)
    with pytest.raises(InvalidInput, match=r"reads text only, .* use a vision-language model's"):
        blind.say("What?", images=[image(0)])
    assert blind.messages == []
    blind.say("What?", **SHORT)


def test_a_text_model_is_shown_no_image_whatever_its_template_has() -> None:
    with pytest.raises(InvalidInput, match="reads text only"):
        text_chat(WITH_IMAGES).say("What?", images=[image(0)])
    seeing = talker("llava").processor
    with pytest.raises(InvalidInput, match="a LlamaForCausalLM reads text only"):
        foveate.Chat(zoo.build("llama"), seeing, "full").say("What?", images=[image(0)])


def test_an_image_that_is_dropped_on_the_way_is_refused() -> None:
    who = talker("llava")

    class Blind(type(who.processor)):
        def __call__(self, images=None, text=(), **how):
            return super().__call__(text=[one.replace("<image>", "") for one in text], **how)

    processor = copy.copy(who.processor)
    processor.__class__ = Blind
    with pytest.raises(InvalidInput, match="would not be seen by the LlavaFor"):
        foveate.Chat(who.model, processor).say("What?", images=[image(0)])
    processor = copy.copy(who.processor)
    processor.chat_template = processor.chat_template.replace("<image>", "")
    with pytest.raises(InvalidInput, match="0 <image> tokens and 1 images"):
        foveate.Chat(who.model, processor).say("What?", images=[image(0)])


FIRST_ONLY = STRINGS.replace("{{- m.role", "{%- if m.role != 'system' or loop.first -%}{{- m.role")
FIRST_ONLY = FIRST_ONLY.replace("'\\n' -}}\n{%- endfor", "'\\n' -}}{%- endif -%}\n{%- endfor")


def test_a_message_that_a_template_drops_is_refused() -> None:
    mine = text_chat(FIRST_ONLY)
    mine.say("Hello", system="Be kind", **SHORT)
    with pytest.raises(InvalidInput, match=r"drops .* of the role 'system' here, .*'Be rude'"):
        mine.say("And now?", system="Be rude", **SHORT)
    assert len(mine.messages) == 3
    mine.say("And now?", **SHORT)


def test_a_template_that_fails_says_why() -> None:
    who = talker("qwen2_vl")
    with pytest.raises(
        InvalidInput, match=r"render plain messages .*Tools should either be a JSON"
    ):
        Wording(who.processor, {"tools": [max]})


@pytest.mark.parametrize("name", ["tokenize", "add_generation_prompt"])
def test_an_argument_of_the_template_that_is_set_here_is_refused(name: str) -> None:
    words = text_tokenizer()
    words.chat_template = STRINGS
    for made in (Wording, lambda processor, how: Words.of(processor, **how)):
        with pytest.raises(InvalidParameter, match=f"{name}=... cannot be passed to the chat temp"):
            made(words, {name: True})


NO_MESSAGES: dict[str, tuple[Any, str]] = {
    "a text without text": ([{"role": "user", "content": [{"type": "text"}]}], "has the part"),
    "no role": ([{"content": "x"}], r"messages\[0\]: .* is no message"),
    "no content": ([{"role": "user", "content": 7}], r"messages\[0\] has the content 7"),
    "no list": (7, "the text is 7: give a text, or a list of messages"),
}


@pytest.mark.parametrize("case", NO_MESSAGES)
def test_what_is_no_message_is_refused(case: str) -> None:
    value, sentence = NO_MESSAGES[case]
    with unchecked(), pytest.raises(InvalidInput, match=sentence):
        chat().say(value)


def test_a_question_that_is_no_text_is_refused() -> None:
    stream = foveate.Stream(tiny.model(), tiny.processor(), "infinipotv:budget=64")
    stream.see(tiny.frame(0))
    pipe = foveate.Pipeline(*talker("llava")[:2])
    with unchecked():
        with pytest.raises(InvalidInput, match="the question is None: give a text"):
            stream.ask(None)
        with pytest.raises(InvalidInput, match=r"questions\[1\] is None: give a text"):
            pipe("A receipt.", questions=["Why?", None])


FRAMES = np.zeros((2, 4, 4, 3), np.uint8)
CLIPS: dict[str, tuple[dict[str, Any], str]] = {
    "no rate": ({"fps": 0.0}, "fps=0.0 of a Clip"),
    "an endless rate": ({"fps": float("inf")}, "fps=inf of a Clip"),
    "no duration": ({"duration": float("nan")}, "duration=nan of a Clip"),
    "no frame": ({"frames": FRAMES[:0], "times": np.zeros(0)}, "frames of a Clip are uint8 .0,"),
    "floats": ({"frames": FRAMES / 255}, "frames of a Clip are float64"),
    "one image": ({"frames": FRAMES[0]}, r"frames of a Clip are uint8 \[4, 4, 3\]"),
    "too few times": ({"times": np.zeros(1)}, "times of a Clip of 2 frames"),
    "times out of order": ({"times": np.array([1.0, 0.0])}, "of seconds for each frame, in order"),
}


@pytest.mark.parametrize("case", CLIPS)
def test_a_clip_that_cannot_be_is_refused(case: str) -> None:
    how, sentence = CLIPS[case]
    right = {"frames": FRAMES, "times": np.array([0.0, 1.0]), "fps": 1.0, "duration": 2.0}
    foveate.Clip(**right)
    with unchecked(), pytest.raises(InvalidParameter, match=sentence):
        foveate.Clip(**{**right, **how})


def test_a_system_prompt_that_a_template_drops_is_refused_by_streams_and_eval() -> None:
    processor = copy.copy(tiny.processor())
    processor.tokenizer = copy.copy(processor.tokenizer)
    template = processor.tokenizer.chat_template
    processor.tokenizer.chat_template = template.replace("messages", "messages[-1:]", 1)
    with pytest.raises(InvalidInput, match=r"drops a message of the role 'system'.*'Be kind'"):
        foveate.Stream(tiny.model(), processor, "infinipotv:budget=64", system="Be kind")
    words = text_tokenizer()
    words.chat_template = STRINGS.replace("messages", "messages[-1:]", 1)
    loaded = Loaded("tiny", zoo.build("llama"), words, sees=False)
    messages = [{"role": "system", "content": "Be kind"}, {"role": "user", "content": "Why?"}]
    with pytest.raises(InvalidInput, match=r"drops a message of the role 'system'.*'Be kind'"):
        read_chat(loaded, messages)
    assert read_chat(loaded, messages[1:]).tokens == len("user: Why?\nassistant: ")
