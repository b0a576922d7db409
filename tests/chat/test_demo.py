"""The demo model, which can see, remembers in the sixth turn what the first one showed."""

from __future__ import annotations

import pytest

import foveate
from foveate_demo import PROFILES, album, vision

TURNS = (
    ("What is Anna's city?", 0),
    ("What is Anna's room?", None),
    ("What is Bruno's room?", 1),
    ("What is Nora's city?", 2),
    ("What is Nora's sport?", None),
    ("What is Anna's city?", None),
)
PROFILED = f"recommended:budget=10%,profile={PROFILES / 'recommended.safetensors'}"


@pytest.mark.parametrize(
    ("spec", "share"), [pytest.param("full", 1.0, marks=pytest.mark.slow), (PROFILED, 0.12)]
)
def test_the_first_image_is_still_known_in_the_sixth_turn(spec: str, share: float) -> None:
    model, processor = vision.load()
    images = album.images()
    with foveate.Chat(model, processor, spec, template_kwargs={"add_vision_id": True}) as chat:
        for question, number in TURNS:
            shown = [] if number is None else [images[number]]
            answer = chat.say(question, images=shown, max_new_tokens=12, do_sample=False)
        assert "Lisbon" in answer.text
        assert chat.held.share <= share
