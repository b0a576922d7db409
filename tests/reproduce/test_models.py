"""Which of a paper's models a place is."""

from __future__ import annotations

import pytest

from foveate.errors import InvalidInput
from foveate_lab.reproduce.models import MODELS, sources_of

TWO = ("llava-1.5-7b", "qwen2-vl-7b")


@pytest.mark.parametrize(
    ("names", "given", "found"),
    [
        (TWO, [], {name: MODELS[name].hub for name in TWO}),
        (TWO, ["qwen2-vl-7b=/m/q"], {"qwen2-vl-7b": "/m/q"}),
        (TWO, ["/m/llava-1.5-7b-hf/"], {"llava-1.5-7b": "/m/llava-1.5-7b-hf/"}),
        (TWO[:1], ["/m/any"], {"llava-1.5-7b": "/m/any"}),
        (TWO, ["qwen-vl=/m/v", "llava-1.5-7b=/m/l"], {"llava-1.5-7b": "/m/l"}),
    ],
)
def test_places(names, given, found):
    assert sources_of(names, given) == found


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("/m/any", "may be any of llava-1.5-7b, qwen2-vl-7b: write NAME=PLACE"),
        ("qwen2-vl-8b=/m/q", "Did you mean 'qwen2-vl-7b'"),
        ("qwen-vl=/m/v", "none of its models is given"),
    ],
)
def test_what_cannot_be_told_is_an_error(given, said):
    with pytest.raises(InvalidInput, match=said):
        sources_of(TWO, [given])
