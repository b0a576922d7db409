"""What is said reaches the model in the template's words, and as it was said."""

from __future__ import annotations

import copy
import logging
import re
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import foveate
from foveate.errors import InvalidInput
from foveate.prompts.special_tokens import tokens_after
from foveate.prompts.template import squashed
from tests import zoo
from tests.zoo.directory import tokenizer as text_tokenizer

from .conversations import TURNS, Record, image
from .families import CLOSES, OPENS, PROCESSORS, Talker, talker, tokenizer
from .test_turns import EXACT

WHOLE = "snapkv:budget=100%,window=4"
IN_TOKENS = {"tokenize": True, "return_dict": True, "return_tensors": "pt"}
SHORT = {"max_new_tokens": 3, "do_sample": False}
THINKS = """\
{%- for m in messages -%}
{%- set earlier = m.role == 'assistant' and not loop.last -%}
{{- '<|im_start|>' + m.role + '\n' -}}
{%- for c in m.content -%}
{%- if c.type == 'image' -%}{{- 'IMAGE' -}}
{%- else -%}{{- c.text.split('</think>')[-1] if earlier else c.text -}}{%- endif -%}
{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"""
"""A template that drops the thoughts of earlier answers."""


def template(chat: str) -> Talker:
    """Qwen2-VL with another chat template."""
    who = talker("qwen2_vl")
    processor = copy.copy(who.processor)
    image_token = "<|vision_start|><|image_pad|><|vision_end|>"
    processor.chat_template = chat.replace("IMAGE", image_token)
    return who._replace(processor=processor)


@pytest.mark.parametrize("name", PROCESSORS)
def test_the_tokens_are_those_of_the_template(name: str) -> None:
    """Of the first turn all; later ones in the template's words for the whole conversation."""
    who, record = talker(name), Record()
    chat = foveate.Chat(who.model, who.processor, WHOLE)
    for number in range(len(TURNS)):
        answer = record.say(chat, number)
        stock = who.processor.apply_chat_template(
            chat.messages[:-1], add_generation_prompt=True, **IN_TOKENS
        )["input_ids"]
        told = chat._now.ids[:, : -len(answer.ids)]
        if number == 0:
            assert torch.equal(told, stock)
    texts = [squashed(who.processor.tokenizer.decode(ids[0])) for ids in (told, stock)]
    images = [re.sub(r"<image>+|(<\|image_pad\|>)+|(<IMG_CONTEXT>)+", "", text) for text in texts]
    assert images[0].replace("<image>", "") == images[1].replace("<image>", "")


def test_special_tokens_in_a_text_are_text() -> None:
    who, said = talker("qwen2_vl"), "Is <|im_end|> an end, \ufffc or <|image_pad|>?"
    chat = foveate.Chat(who.model, who.processor, WHOLE)
    for number in range(2):
        chat.say(said, images=[image(number)], system="<|im_start|>", **SHORT)
    ids, words = chat._now.ids[0], who.processor.tokenizer
    assert int((ids == OPENS).sum()) == 6
    assert int((ids == CLOSES).sum()) == 5  # behind all but the latest answer
    assert words.decode(ids).count("Is <|im_end|> an end") == 2
    assert chat.messages[1]["content"][-1]["text"] == said
    plain = foveate.Chat(who.model, who.processor, WHOLE)
    for number in range(2):
        plain.say("Is it an end?", images=[image(number)], **SHORT)
    assert int((plain._now.ids == zoo.IMAGE).sum()) == int((ids == zoo.IMAGE).sum())


def test_a_text_behind_another_has_the_tokens_that_it_has_there() -> None:
    """SentencePiece puts a mark for a space in front of whatever is tokenised alone."""
    letters = ["<unk>", "<s>", "\u2581", *"USER:x.0abc\n", "\u2581U"]
    backend = Tokenizer(models.Unigram([(one, -float(i)) for i, one in enumerate(letters)], 0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Metaspace()
    words = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", bos_token="<s>")
    whole = words("abc USER: c", add_special_tokens=False)["input_ids"]
    front = words("abc", add_special_tokens=False)["input_ids"]
    assert tokens_after(words, " USER: c") == whole[len(front) :]
    assert words("USER: c")["input_ids"] != tokens_after(words, "USER: c")


STRINGS = """\
{%- for m in messages -%}
{%- if m.content is not string -%}{{- raise_exception('strings only') -}}{%- endif -%}
{{- m.role + ': ' + m.content + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'assistant: ' -}}{%- endif -%}"""


def test_a_model_that_reads_text_only_chats_and_takes_no_image() -> None:
    words = text_tokenizer()
    words.chat_template = STRINGS
    chat = foveate.Chat(zoo.build("llama"), words, WHOLE)
    chat.say("Good morning", system="Be kind", **SHORT)
    parts = [{"type": "text", "text": "Good "}, {"type": "text", "text": "night"}]
    chat.say(messages=[{"role": "user", "content": parts}], **SHORT)
    assert "user: Good night\nassistant: " in words.decode(chat._now.ids[0])
    with pytest.raises(InvalidInput, match="reads text only, and a message has 'image'"):
        chat.say("And this?", images=[image(0)])
    assert len(chat.messages) == 5


def test_tools_answer_and_histories_begin_in_messages_of_the_templates_own_form() -> None:
    who = talker("qwen3_vl")
    chat = foveate.Chat(who.model, who.processor, WHOLE)
    parts = [
        {"type": "text", "text": "Of these, "},
        {"type": "image", "image": image(0)},
        {"type": "text", "text": " and "},
        {"type": "image", "image": image(1)},
    ]
    history = [{"role": "user", "content": parts}, {"role": "assistant", "content": "Neither."}]
    chat.say("Why?", messages=history, **SHORT)
    chat.say(messages=[{"role": "tool", "content": '{"total": 7}'}], **SHORT)
    told = who.processor.tokenizer.decode(chat._now.ids[0])
    assert "<|vision_end|> and <|vision_start|>" in told
    assert '<|im_start|>tool\n{"total": 7}<|im_end|>' in told
    assert [one["role"] for one in chat.messages] == [
        *("user", "assistant", "user", "assistant", "tool", "assistant")
    ]


def thoughtful(rewrites: Any, spec: str = WHOLE) -> tuple[Talker, foveate.Chat, Record]:
    """Three turns with images, whose answers begin with thoughts that the template drops later."""
    who, record = template(THINKS), Record()
    chat = foveate.Chat(who.model, who.processor, spec, rewrites=rewrites)
    letters = who.processor.tokenizer
    with record.listening():
        for number in range(3):
            thoughts = letters(f"Hm{number}</think>Yes", add_special_tokens=False)["input_ids"]
            record.say(chat, number, tokens=thoughts)
    return who, chat, record


def test_what_a_template_rewrites_is_kept_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "foveate"):
        who, chat, record = thoughtful("keep")
    (warning,) = caplog.messages
    assert warning.endswith('they stay as they were read (rewrites="follow" reads them again).')
    assert who.processor.tokenizer.decode(chat._now.ids[0]).count("</think>") == 3
    assert record.differs(who, chat) <= EXACT


def test_a_template_that_rewrites_is_followed() -> None:
    """Earlier thoughts are in the cache no more, and what is, is exact."""
    who, chat, record = thoughtful("follow")
    told = who.processor.tokenizer.decode(chat._now.ids[0])
    assert re.findall(r"Hm\d", told) == ["Hm2"]
    stock = who.processor.apply_chat_template(
        chat.messages[:-1], add_generation_prompt=True, **IN_TOKENS
    )["input_ids"]
    assert torch.equal(chat._now.ids[:, : stock.shape[1]], stock)
    record.logits, record.starts = record.logits[-1:], record.starts[-1:]
    assert record.differs(who, chat) <= EXACT


def test_a_template_that_rewrites_is_refused() -> None:
    with pytest.raises(InvalidInput, match="renders earlier turns differently"):
        thoughtful("refuse")


def test_a_template_that_words_no_answer_is_refused() -> None:
    words = text_tokenizer()
    words.chat_template = "{{- messages[-1].content if messages[-1].role == 'user' else '' -}}"
    with pytest.raises(InvalidInput, match="cannot render plain messages of the role 'assistant'"):
        foveate.Chat(zoo.build("llama"), words)
    words.chat_template = None
    with pytest.raises(InvalidInput, match="has no chat template"):
        foveate.Chat(zoo.build("llama"), words)


def test_a_token_in_the_middle_is_not_put_in_front_again() -> None:
    """A tokenizer that begins every text with a token does so once."""
    words = tokenizer({OPENS: "<|im_start|>", CLOSES: "<|im_end|>"}, begins=True)
    words.chat_template = STRINGS
    chat = foveate.Chat(zoo.build("llama"), words, WHOLE)
    for _ in range(2):
        chat.say("Say <|im_end|>", **SHORT)
    assert int((chat._now.ids == words.bos_token_id).sum()) == 1
