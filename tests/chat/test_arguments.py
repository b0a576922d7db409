"""Arguments of chats, pipelines and streams are used, or refused by their names."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, LogitsProcessorList

import foveate
from foveate.chat import persistence
from foveate.errors import FoveateError, InvalidInput, InvalidParameter

from .busy import SPEC, chat_of
from .conversations import Spoken, image, words
from .families import Talker, talker

FRAMES = "snapkv:budget=40,window=4"


def pipeline_of(who: Talker, **settings: Any) -> Any:
    return foveate.Pipeline(who.model, who.processor, **settings)


def stream_of(who: Talker, **settings: Any) -> Any:
    return foveate.Stream(who.model, who.processor, FRAMES, **settings)


def sees(stream: Any) -> Any:
    stream.see(image(0))
    return stream


MAKERS = {"chat": chat_of, "pipeline": pipeline_of, "stream": stream_of}
UNKNOWN: dict[str, Any] = {
    "budget": ("1MB", "A budget is part of the policy"),
    "max_new_token": (3, "Did you mean 'max_new_tokens'"),
    "tools": ([max], r"give template_kwargs=\{'tools': "),
}


@pytest.mark.parametrize("name", UNKNOWN)
@pytest.mark.parametrize("maker", MAKERS)
def test_an_unknown_argument_is_refused_with_what_to_write(maker: str, name: str) -> None:
    value, sentence = UNKNOWN[name]
    with pytest.raises(InvalidParameter, match=f"^{name}=.*{sentence}"):
        MAKERS[maker](talker("qwen2_vl"), **{name: value})


def test_an_argument_of_a_chat_that_is_misspelt_is_told() -> None:
    with pytest.raises(InvalidParameter, match=r"rewrite=.*Did you mean 'rewrites'"):
        chat_of(talker("llava"), rewrite="follow")
    with pytest.raises(InvalidParameter, match="keep_turns=-1"):
        chat_of(talker("llava"), keep_turns=-1)
    with pytest.raises(InvalidParameter, match="reread=-1: give a number of tokens"):
        chat_of(talker("llava"), reread=-1)


CALLS = {
    "say": (chat_of, lambda chat, **how: chat.say("Look", **how)),
    "retry": (chat_of, lambda chat, **how: (chat.say("Look"), chat.retry(**how))),
    "ask": (stream_of, lambda stream, **how: sees(stream).ask("What?", **how)),
    "pipeline": (pipeline_of, lambda pipe, **how: pipe("A text.", question="What?", **how)),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_misspelt_argument_of_generate_is_refused_by_its_name(call: str) -> None:
    make, use = CALLS[call]
    user = make(talker("qwen2_vl"), max_new_tokens=2)
    with pytest.raises(InvalidParameter, match=r"do_sampel=.*Did you mean 'do_sample'"):
        use(user, do_sampel=True)


@pytest.mark.parametrize("maker", MAKERS)
def test_template_arguments_that_the_template_ignores_are_refused(maker: str) -> None:
    make = MAKERS[maker]
    with pytest.raises(InvalidParameter, match="reads no 'enable_thinking', so it would be"):
        make(talker("qwen2_vl"), template_kwargs={"enable_thinking": False})
    with pytest.raises(InvalidParameter, match=r"Foveate sets it: leave 'tokenize' out"):
        make(talker("qwen2_vl"), template_kwargs={"tokenize": True})


def test_words_of_a_stream_leave_nothing_to_a_template() -> None:
    who = talker("qwen2_vl")
    own = stream_of(who).words
    for ignored in ({"system": "Be brief."}, {"template_kwargs": {"messages": []}}):
        with pytest.raises(InvalidParameter, match=f"{next(iter(ignored))}=.* words="):
            stream_of(who, words=own, **ignored)


NAMES_A_STYLE = "{{- style ~ '|' -}}"


def styled(who: Talker) -> Talker:
    """A talker whose template reads one more variable."""
    processor = copy.copy(who.processor)
    processor.chat_template = NAMES_A_STYLE + who.processor.chat_template
    return who._replace(processor=processor)


def test_settings_of_a_chat_hold_for_every_turn_and_a_calls_own_override_them(
    tmp_path: Path,
) -> None:
    who = styled(talker("qwen2_vl"))
    chat = chat_of(
        who,
        system="Be brief.",
        keep_turns=0,
        template_kwargs={"style": "plain"},
        max_new_tokens=3,
        eos_token_id=None,
    )
    assert len(chat.say("Hello").ids) == 3
    assert len(chat.say("Hello", max_new_tokens=5).ids) == 5
    config = GenerationConfig(max_new_tokens=4)
    assert len(chat.say("Hello", generation_config=config, eos_token_id=None).ids) == 4
    roles = [message["role"] for message in chat.messages]
    assert roles == ["system", *["user", "assistant"] * 3]
    text = who.processor.tokenizer.decode(chat._now.ids[0])
    assert text.startswith("plain|<|im_start|>system\nBe brief.<|im_end|>")
    chat.save(tmp_path / "chat.safetensors")
    loaded = foveate.Chat.load(tmp_path / "chat.safetensors", who.model, who.processor)
    for other in (loaded, chat.fork(), copy.copy(chat), copy.deepcopy(chat)):
        assert other._settings() == chat._settings()
        assert len(other.say("Go on").ids) == 3
        assert other.messages[: len(chat.messages)] == chat.messages
    own = chat_of(who, system="Be brief.", template_kwargs={"style": "plain"}, max_new_tokens=2)
    own.say("Hello", system="Be long.")
    assert [m["content"][0]["text"] for m in own.messages if m["role"] == "system"] == ["Be long."]


def test_settings_that_no_file_holds_are_named_when_the_chat_is_saved(tmp_path: Path) -> None:
    chat = chat_of(
        talker("llava"), logits_processor=LogitsProcessorList([Spoken(words(0))]), max_new_tokens=4
    )
    chat.say("Hello")
    with pytest.raises(InvalidInput, match="arguments of generate in Chat"):
        chat.save(tmp_path / "chat.safetensors")


def test_a_file_of_an_earlier_version_is_a_chat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its entries are the settings "rewrites" and "template", and none of ``generate``."""
    who, packed = talker("llava"), persistence.pack

    def earlier(entries: Any) -> torch.Tensor:
        entries = {k: v for k, v in entries.items() if k not in ("generate", "system")}
        del entries["keep_turns"], entries["positions"], entries["reread"], entries["turns"]
        assert json.dumps(sorted(entries)) == json.dumps(
            ["answer", "ids", "messages", "rewrites", "template", "told", "types"]
        )
        return packed(entries)

    chat = chat_of(who, rewrites="refuse", max_new_tokens=3)
    chat.say("Hello")
    monkeypatch.setattr(persistence, "pack", earlier)
    chat.save(tmp_path / "chat.safetensors")
    loaded = foveate.Chat.load(tmp_path / "chat.safetensors", who.model, who.processor)
    assert loaded._settings()["rewrites"] == "refuse"
    assert loaded.messages == chat.messages
    assert len(loaded.say("Go on", max_new_tokens=2).ids) <= 2


def test_a_pipeline_and_a_stream_use_their_settings(tmp_path: Path) -> None:
    who = styled(talker("qwen2_vl"))
    settings: dict[str, Any] = {
        "system": "Be brief.",
        "template_kwargs": {"style": "plain"},
        "max_new_tokens": 3,
        "eos_token_id": None,
    }
    pipe, read = pipeline_of(who, **settings), []
    tokenizer = who.processor.tokenizer
    note = LogitsProcessorList([lambda ids, scores: read.append(ids[0]) or scores])
    pipe("A text.", question="What?", policy=SPEC, logits_processor=note)
    assert len(read) == 3
    opening = "plain|<|im_start|>system\nBe brief.<|im_end|>"
    assert tokenizer.decode(read[0]).startswith(opening)
    stream = sees(stream_of(who, **settings))
    assert stream.words.opening.startswith(opening)
    assert len(stream.ask("What?").ids) == 3
    assert len(stream.ask("What?", max_new_tokens=5).ids) == 5
    stream.save(tmp_path / "stream.safetensors")
    loaded = foveate.Stream.load(tmp_path / "stream.safetensors", who.model, who.processor)
    assert len(loaded.ask("What?").ids) == 3


def test_copies_of_what_holds_a_model_are_forks_or_refused() -> None:
    chat = chat_of(talker("llava"), max_new_tokens=3)
    chat.say("Hello")
    assert copy.deepcopy(chat).messages == chat.messages
    with pytest.raises(InvalidInput, match=r"fork\(\)"):
        pickle.dumps(chat)
    stream = stream_of(talker("qwen2_vl"))
    for copied in (copy.deepcopy, copy.copy, pickle.dumps):
        with pytest.raises(InvalidInput, match=r"save\(\) and Stream.load"):
            copied(stream)


# Settings are merged as transformers merges them


@pytest.fixture
def beaming(monkeypatch: pytest.MonkeyPatch) -> Talker:
    """A model whose checkpoint decodes with beams."""
    who = talker("qwen2_vl")
    monkeypatch.setattr(who.model.generation_config, "num_beams", 3)
    return who


@pytest.mark.parametrize("call", CALLS)
def test_beams_of_a_checkpoint_are_refused_also_beside_a_users_configuration(
    call: str, beaming: Talker
) -> None:
    make, use = CALLS[call]
    config = GenerationConfig(max_new_tokens=3)
    user = make(beaming)
    if call == "retry":
        user.say("Look", num_beams=1, max_new_tokens=2)
        use = foveate.Chat.retry
    with pytest.raises(InvalidInput, match=r"num_beams=3: .*one answer at a time"):
        use(user, **({"num_beams": 3} if call == "retry" else {"generation_config": config}))
    with pytest.raises(InvalidInput, match=r"num_beams=3: .*one answer at a time"):
        make(beaming, generation_config=GenerationConfig(num_beams=3))


def test_one_beam_is_one_row_also_where_a_context_is_only_read(beaming: Talker) -> None:
    chat = chat_of(beaming, num_beams=1, max_new_tokens=3)
    chat.say("Hello")
    assert chat._now.cache is not None
    assert len(chat._now.cache.layers[0].keys) == 1
    pipe = pipeline_of(beaming, num_beams=1, max_new_tokens=3)
    assert pipe("A text.", question="What?", policy=SPEC)["stats"].layers[0].kept.shape[0] == 1


@pytest.mark.parametrize("call", CALLS)
def test_a_stop_string_ends_an_answer_without_a_tokenizer_being_given(call: str) -> None:
    who, (make, use) = talker("qwen2_vl"), CALLS[call]
    text = "ab.cd"
    tokens = who.processor.tokenizer(text, add_special_tokens=False)["input_ids"]
    for how in (
        {"stop_strings": ["b."], "max_new_tokens": 5},
        {"generation_config": GenerationConfig(stop_strings=["b."], max_new_tokens=5)},
    ):
        user = make(who, eos_token_id=None, max_new_tokens=2, do_sample=False)
        spoken = Spoken(tokens)
        answered = use(user, logits_processor=LogitsProcessorList([spoken]), **how)
        assert len(spoken.logits) == 3
        answer = answered[-1] if call == "retry" else answered
        assert (answer["answer"] if call == "pipeline" else answer.text) == "ab."


def test_a_length_of_the_whole_conversation_is_the_callers_alone() -> None:
    who = talker("llava")
    chat = chat_of(who, eos_token_id=None, max_new_tokens=2)
    chat.say("Hello")
    seen = chat._now.ids.shape[1]
    longer = seen + len("USER: Go on ASSISTANT:") + 7
    answer = chat.say("Go on", max_length=longer)
    assert chat._now.ids.shape[1] == longer
    assert len(answer.ids) > 2
    config = GenerationConfig(max_length=5)
    for how in ({"max_length": 5}, {"generation_config": config}):
        with pytest.raises(InvalidInput, match="max_length=5 counts the whole conversation"):
            chat.say("Go on", **how)


def test_a_configuration_that_leaves_no_cache_is_refused_beside_a_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    who = talker("llava")
    monkeypatch.setattr(who.model.generation_config, "use_cache", False)
    inputs = who.processor(text="What?", return_tensors="pt")
    config = GenerationConfig(max_new_tokens=2)
    with foveate.compress(who.model, SPEC), pytest.raises(FoveateError, match="use_cache=False"):
        who.model.generate(**inputs, generation_config=config)
    with pytest.raises(InvalidInput, match=r"give a transformers\.GenerationConfig"):
        chat_of(who, generation_config={"max_new_tokens": 2})
