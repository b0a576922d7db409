"""Where on a prompt's images the answer is shown, under a processor that crops them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PIL import Image

from foveate.cli.calibrate.prompts import locate_spans
from foveate.errors import InvalidInput
from foveate.loading.model import Loaded
from foveate.prompts.evidence import on_images, tokens_of
from foveate.prompts.prompt import read
from foveate.prompts.sample import Sample, Span
from foveate_lab.eval.answering.reading import read_prompt, tokens_of_images, view_of
from foveate_lab.eval.tasks import find_task

WIDE = Image.new("RGB", (90, 30))
LEFT, MIDDLE = Span("left", 0, (2, 2, 20, 28)), Span("middle", 0, (41, 11, 49, 19))


def test_a_box_is_looked_for_where_the_processor_puts_it(loaded: Loaded) -> None:
    """The tiny LLaVA keeps the middle 30 x 30 of the image, as 3 x 3 tokens."""
    prompt = read(loaded, "?", [WIDE])
    (tokens,) = on_images(loaded, prompt, [WIDE])
    places, (grid,) = tokens.indices, tokens.grids
    assert grid.box == (30.0, 0.0, 60.0, 30.0)
    assert tokens_of(loaded, prompt, [WIDE], [LEFT, MIDDLE]) == [(), (places[4],)]
    assert tokens_of_images(loaded, prompt, [WIDE]) == [9]
    assert view_of(loaded, prompt, [WIDE]) == (30.0, 0.0, 60.0, 30.0)


def test_what_a_grounding_task_asks_knows_what_the_model_sees(loaded: Loaded) -> None:
    sample = Sample("0", "?", ("x",), (WIDE,), facts={"box": (41, 11, 8, 8)})
    task = find_task("gui_icon")
    for asked, facts in ((sample, True), (replace(sample, facts={}), False)):
        read_in = read_prompt(loaded, task, asked, "query-aware", timed=False, longest_prompt=None)
        assert ("view" in read_in.sample.facts) is facts


def test_heads_are_not_asked_to_look_at_what_is_cut_off(loaded: Loaded) -> None:
    sample = Sample("page 3", "?", ("x",), (WIDE,), evidence=(LEFT, MIDDLE))
    assert [text for text, _ in locate_spans(loaded, sample).spans] == ["middle"]
    with pytest.raises(InvalidInput, match=r"sample page 3: the processor .* crops \['left'\] off"):
        locate_spans(loaded, replace(sample, evidence=(LEFT,)))


def test_without_a_processor_that_is_known_nothing_is_guessed(loaded: Loaded) -> None:
    bare = replace(loaded, reader=loaded.tokenizer)
    prompt = read(loaded, "?", [WIDE])
    with pytest.raises(InvalidInput, match="not known for llava and TokenizersBackend"):
        tokens_of(bare, prompt, [WIDE], [MIDDLE])
    assert view_of(bare, prompt, [WIDE]) is None
    assert tokens_of_images(bare, prompt, [WIDE]) == [9]
