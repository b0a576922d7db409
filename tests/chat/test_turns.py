"""Six turns with four images in one cache: what is held of them is exact."""

from __future__ import annotations

import pytest

import foveate
from tests.jitter import WIDER

from .conversations import TURNS, Record
from .families import PROCESSORS, talker

EXACT = 2e-5 + WIDER


def said(name: str, spec: str) -> tuple[foveate.Chat, Record]:
    """All turns; every second answer ends by itself, the others at their length."""
    who, record = talker(name), Record()
    chat = foveate.Chat(who.model, who.processor, spec)
    with record.listening():
        for number in range(len(TURNS)):
            answer = record.say(chat, number, who.eos if number % 2 else None)
            assert answer.ended == ("eos" if number % 2 else "length")
    return chat, record


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_chat_is_the_stock_models_reading_of_all_of_it(name: str) -> None:
    chat, record = said(name, "snapkv:budget=100%,window=4")
    assert record.differs(talker(name), chat) <= EXACT


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_compressed_chat_is_all_of_it_without_what_was_forgotten(name: str) -> None:
    chat, record = said(name, "snapkv:budget=30%,window=4")
    assert record.differs(talker(name), chat, masked=True) <= EXACT
    assert record.differs(talker(name), chat) > 100 * EXACT
