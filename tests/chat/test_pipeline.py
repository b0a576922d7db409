"""Questions about a compressed context, text in and text out; and transformers' own way in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LogitsProcessorList, dynamic_module_utils

import foveate
from foveate.custom_generate import FOLDER
from foveate.errors import InvalidInput, InvalidSpec
from tests import zoo
from tests.conformance.oracle import event_of
from tests.core.users import unchecked

from .conversations import LETTERS, Spoken, image, words
from .families import Talker, talker
from .test_turns import EXACT

CONTEXT = "A receipt of 7 March with bread, milk and a lamp. " * 4
SPEC = "snapkv:budget=30%,window=4"


def by_hand(
    who: Talker, question: str, prefix: str, tokens: list[int], seen: int
) -> list[torch.Tensor]:
    """The logits of an answer, by a session: the context compressed, the question kept whole."""
    message = [
        {"type": "image", "image": image(0)},
        {"type": "text", "text": f"{CONTEXT}{question}"},
    ]
    inputs = who.processor.apply_chat_template(
        [{"role": "user", "content": message}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )
    whole, end = inputs.pop("input_ids"), len(f"{question} ASSISTANT:")  # a letter is a token
    letters = who.processor.tokenizer(prefix, add_special_tokens=False, return_tensors="pt")
    context, rest = whole[:, :-end], torch.cat([whole[:, -end:], letters["input_ids"]], 1)
    spoken = Spoken(tokens)
    with foveate.compress(who.model, SPEC) as session:
        context_alone = {**inputs, "attention_mask": torch.ones_like(context)}
        cache = session.prefill(input_ids=context, **context_alone)
        assert session.stats.seen == seen
        who.model.generate(
            torch.cat([context, rest], 1),
            past_key_values=cache,
            logits_processor=LogitsProcessorList([spoken]),
            max_new_tokens=len(tokens),
            do_sample=False,
        )
    return spoken.logits


def test_a_question_is_asked_of_the_compressed_context_and_the_prefix_begins_the_answer() -> None:
    who = talker("llava")
    pipe = foveate.Pipeline(who.model, who.processor)
    spoken = Spoken(words(1))
    found = pipe(
        CONTEXT,
        question="Which day?",
        answer_prefix=" On",
        images=[image(0)],
        policy=SPEC,
        logits_processor=LogitsProcessorList([spoken]),
        max_new_tokens=4,
    )
    assert found["answer"] == who.processor.tokenizer.decode(words(1)).strip()
    theirs = by_hand(who, "Which day?", " On", words(1), found["stats"].seen)
    assert float((torch.stack(spoken.logits) - torch.stack(theirs)).abs().max()) <= EXACT


def test_questions_know_nothing_of_each_other() -> None:
    who = talker("llava")
    pipe = foveate.Pipeline(who.model, who.processor)
    how: dict[str, Any] = {"policy": SPEC, "max_new_tokens": 4, "do_sample": False}
    asked = ["Which day?", "What was bought?"]
    both = pipe(CONTEXT, questions=asked, **how)["answers"]
    assert both == [pipe(CONTEXT, question=one, **how)["answer"] for one in asked]
    assert both[0] != both[1]
    with pytest.raises(InvalidInput, match="either question or questions"):
        pipe(CONTEXT)
    with pytest.raises(InvalidInput, match="num_beams=2"):
        pipe(CONTEXT, question="Why?", num_beams=2)


def test_generate_compresses_by_the_folder_that_comes_along(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    model, inputs = zoo.build("llava"), zoo.prompt("llava")
    how: dict[str, Any] = {"do_sample": False, "max_new_tokens": 4}
    by_folder = {"custom_generate": FOLDER, "trust_remote_code": True}
    ours, theirs = (Spoken(list(LETTERS)[:4]) for _ in range(2))
    cache = model.generate(
        **inputs,
        **how,
        **by_folder,
        policy=SPEC,
        return_dict_in_generate=True,
        logits_processor=LogitsProcessorList([ours]),
    ).cache
    with foveate.compress(model, SPEC) as session:
        model.generate(**inputs, **how, logits_processor=LogitsProcessorList([theirs]))
    assert torch.equal(torch.stack(ours.logits), torch.stack(theirs.logits))
    kept = event_of(cache).kept
    assert all(torch.equal(kept[i], each) for i, each in event_of(session.cache).kept.items())
    with pytest.raises(InvalidSpec), unchecked():
        model.generate(**inputs, **how, **by_folder, policy=7)
