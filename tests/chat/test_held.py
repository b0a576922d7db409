"""What is left of each turn and image, its picture, and the end of the model's positions."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from PIL import Image, ImageChops

import foveate
from foveate.chat.storage import tokens_of
from foveate.errors import InvalidInput
from foveate.hf.layer.support import foveate_layers, text_config
from foveate.hf.model.modality import visual_token_ids

from .busy import chat_of
from .conversations import Record
from .families import talker

FAMILIES = ["llava", "qwen2_vl", "internvl", "gemma3"]


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_left_of_each_turn_adds_up_to_what_is_held(name: str) -> None:
    who, record = talker(name), Record()
    chat = chat_of(who, "adakv:budget=30%,window=4")
    assert chat.held.by_turn == ()
    for turn in range(3):
        record.say(chat, turn)
    held, ids = chat.held, chat._now.ids[0]
    assert sum(turn.seen for turn in held.by_turn) == held.seen == len(ids) - 1
    assert sum(turn.seen * turn.share for turn in held.by_turn) == pytest.approx(held.tokens)
    layers = foveate_layers(chat._now.cache)
    stored = torch.stack(  # counted one by one
        [
            sum((layer.pairs.columns[0] == token).any(-1).double().mean() for layer in layers)
            for token in range(held.seen)
        ]
    ) / len(layers)
    visual = torch.isin(ids[:-1], ids.new_tensor(visual_token_ids(who.model.config)))
    start = 0
    for turn, images in zip(held.by_turn, (1, 0, 2), strict=True):
        part = slice(start, start + turn.seen)
        assert turn.share == pytest.approx(float(stored[part].mean()), abs=1e-6)
        assert len(turn.images) in ({images, 1} if images else {0})
        if images == 1:
            mean = float(stored[part][visual[part]].mean())
            assert turn.images == (pytest.approx(mean, abs=1e-6),)
        start += turn.seen
    chat.undo()
    assert len(chat.held.by_turn) == 2


@pytest.mark.parametrize("name", FAMILIES)
def test_a_picture_shows_the_images_of_a_turn_with_what_is_left(name: str, tmp_path: Path) -> None:
    who, drawn = talker(name), {}
    for spec in ("snapkv:budget=100%,window=4", "snapkv:budget=30%,window=4"):
        chat, record = chat_of(who, spec), Record()
        for turn in range(3):
            record.say(chat, turn)
        drawn[spec] = chat.picture(0), chat.picture(2)
        with pytest.raises(InvalidInput, match="turn 1 has no image"):
            chat.picture(1)
    whole, some = drawn.values()
    assert all(isinstance(page, Image.Image) for page in (*whole, *some))
    panel = (0, 80, 900, 300)  # below the captions, which differ
    for clear, foggy in zip(whole, some, strict=True):
        apart = ImageChops.difference(clear.crop(panel), foggy.crop(panel)).getbbox()
        assert apart is not None
    loaded = foveate.Chat.load(chat.save(tmp_path / "chat"), who.model, who.processor)
    assert loaded.held.by_turn == chat.held.by_turn
    with pytest.raises(InvalidInput, match="no pixels"):
        loaded.picture(0)


@pytest.mark.parametrize("name", FAMILIES)
def test_one_warning_when_positions_pass_the_models_range(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    who, record = talker(name), Record()
    chat = chat_of(who, "snapkv:budget=30%,window=4")
    record.say(chat, 0)
    tokens = chat._now.ids.shape[1]
    offset = int(getattr(who.model, "model", who.model).rope_deltas.max()) if "qwen" in name else 0
    limit = tokens + offset
    with (
        caplog.at_level(logging.WARNING, "foveate"),
        mock.patch.object(text_config(who.model), "max_position_embeddings", limit),
    ):
        record.of(chat, 7, None, call="retry")
        assert "next position" not in caplog.text
        record.say(chat, 1)
        record.say(chat, 3)
    said = [r.getMessage() for r in caplog.records if "next position" in r.getMessage()]
    assert len(said) == 1
    assert f"and its model knows {limit} positions" in said[0]


def test_a_mean_that_is_a_whole_number_is_one() -> None:
    layers: list[Any] = [  # the sum of their means as floats is a little over 3
        SimpleNamespace(pairs=SimpleNamespace(counts=torch.tensor([counts])))
        for counts in ([0, 0, 1], [2, 2, 3], [1, 0, 0])
    ]
    assert tokens_of(layers) == 1
