"""The parts of a lens: words, codes, tables, images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import TokenizersBackend
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil

from foveate.models.token_grids import Grid, ImageTokens
from foveate.models.token_grids.kinds import visible_box
from foveate.pictures.lens.page import NO_SCORE, Word, data_uri, in_bytes, parts, tables, words
from foveate.pictures.views import View, views_of
from tests.zoo.directory import tokenizer


def bytes_of() -> TokenizersBackend:
    """A byte a token, as byte-level vocabularies have them for what they do not know."""
    letters = pre_tokenizers.ByteLevel.alphabet()
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(letters))}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|im_start|>"])
    return TokenizersBackend(
        tokenizer_object=backend, extra_special_tokens={"start": "<|im_start|>"}
    )


def pieces() -> TokenizersBackend:
    """Words that begin with their space, as SentencePiece's, which no text begins with."""
    vocabulary = {"<s>": 0, "▁": 1, "▁what": 2, "▁is": 3, "a": 4, "?": 5, "▁a": 6}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["<s>"])
    return TokenizersBackend(tokenizer_object=backend, bos_token="<s>")


def test_words_add_up_to_the_text() -> None:
    text = "What is\n\nthis?  A tab\t."
    reader = bytes_of()
    found = words(reader, reader.encode(text))
    assert [word.text for word in found] == list(text)
    assert not any(word.special for word in found)


def test_a_character_of_several_tokens_stands_at_the_first() -> None:
    reader = bytes_of()
    ids = reader.encode("é😀é!")
    assert [word.text for word in words(reader, ids)] == ["é", "", "😀", "", "", "", "é", "", "!"]
    cut = words(reader, ids[:4])  # ends within a character
    assert [word.text for word in cut][:2] == ["é", ""]
    assert len(cut) == 4


def test_a_words_own_space_stays_with_it() -> None:
    assert [word.text for word in words(pieces(), [0, 2, 3, 4, 5])] == [
        "<s>",
        " what",
        " is",
        "a",
        "?",
    ]


def test_special_tokens_are_named() -> None:
    reader = bytes_of()
    start = reader.convert_tokens_to_ids("<|im_start|>")
    assert words(reader, [start, reader.encode("a")[0]]) == [
        Word("<|im_start|>", special=True),
        Word("a", special=False),
    ]
    assert words(tokenizer(), [1])[0] == Word("<s>", special=True)


def test_codes_keep_order_and_ends_and_are_finer_below() -> None:
    scores = torch.rand(4, 500, generator=torch.Generator().manual_seed(1)) ** 6
    scores[1] -= 0.5
    scores[2, :10] = torch.inf
    scores[3] = torch.nan
    codes, low, high = in_bytes(scores)
    assert (codes[3] == NO_SCORE).all()
    assert (codes[2, :10] == NO_SCORE).all()
    for row in range(3):
        finite = scores[row].isfinite()
        mine, code = scores[row][finite], codes[row][finite].double()
        assert (low[row], high[row]) == (mine.min(), mine.max())
        order = mine.argsort()
        assert (code[order].diff() >= 0).all()
        back = low[row] + (high[row] - low[row]) * (code / 254) ** 2
        span, above = high[row] - low[row], (mine - low[row]).double()
        # half a step of the root: |x - y| <= (1/254)(sqrt(x) + 1/508), in units of the span
        assert ((back - mine).abs() <= span / 254 * ((above / span).sqrt() + 1 / 500)).all()


def test_equal_scores_have_one_code() -> None:
    codes, low, high = in_bytes(torch.full((1, 5), 3.0))
    assert (codes.tolist(), low.tolist(), high.tolist()) == ([[0] * 5], [3.0], [3.0])


def test_tables_are_shared_where_scores_agree() -> None:
    inf, nan = torch.inf, torch.nan
    a, b = torch.tensor([[1.0, 2.0, inf, inf]]), torch.tensor([[1.0, inf, 3.0, inf]])
    other, nothing = torch.tensor([[1.5, 2.0, 3.0, 4.0]]), torch.full((1, 4), nan)
    found, which = tables([a, b, other, nothing])
    assert which == [0, 0, 1, 0]
    assert found[0].tolist() == [[1.0, 2.0, 3.0, inf]]
    assert torch.equal(found[1], other)


def test_the_prompts_parts_come_in_its_order() -> None:
    said = [Word(c, False) for c in "ab..n..cd.e"]
    grids = [Grid(2, 2, (2, 3, 5, 6)), Grid(1, 1, (9,))]
    images = [Image.new("RGB", (4, 4))] * 2
    found = parts(said, views_of(images, [ImageTokens(grid.indices, (grid,)) for grid in grids]))
    shape = [part.get("image", "".join(w["text"] for w in part.get("words", []))) for part in found]
    assert shape == ["ab", 0, "ncd", 1, "e"]
    assert [w["at"] for w in found[2]["words"]] == [4, 7, 8]
    assert found[1] == {
        "image": 0,
        "name": "image 1",
        "rows": 2,
        "columns": 2,
        "places": [2, 3, 5, 6],
    }


def test_an_image_in_tiles_has_two_parts_and_one_without_places_comes_first() -> None:
    said = [Word(c, False) for c in "a........b"]
    tiles = ImageTokens(tuple(range(1, 9)), (Grid(1, 2, (7, 8)), Grid(2, 2, (1, 2, 4, 5))))
    image = Image.new("RGB", (4, 4))
    found = parts(said, views_of([image], [tiles]))
    names = [part.get("name", "".join(w["text"] for w in part.get("words", []))) for part in found]
    assert names == ["a", "image 1 in tiles", "..", "image 1 whole", "b"]
    first, second = parts(said, views_of([image], None))
    assert first == {"image": 0, "name": "image 1", "rows": 0, "columns": 1, "places": []}
    assert [word["at"] for word in second["words"]] == list(range(10))


@pytest.mark.parametrize("size", [(90, 40), (40, 90), (60, 60)])
@pytest.mark.parametrize("pads", [False, True])
def test_an_image_is_shown_as_the_processor_leaves_it(size: tuple[int, int], pads: bool) -> None:
    image = Image.linear_gradient("L").resize(size).convert("RGB")
    image.paste((255, 0, 0), (0, 0, 6, 90))
    processor = LlavaImageProcessorPil(
        size={"shortest_edge": 24},
        crop_size={"height": 24, "width": 24},
        do_normalize=False,
        do_pad=pads,
        image_mean=[0.5] * 3,
    )
    pixels = processor(image, return_tensors="pt")["pixel_values"][0]
    box, _ = visible_box(processor, size) or pytest.fail("a processor that is known")
    view = View("image 1", image, (Grid(1, 1, (0,), box),))
    shown = np.asarray(view.seen.resize((24, 24), Image.Resampling.BICUBIC)) / 255
    assert float(np.abs(shown - pixels.permute(1, 2, 0).numpy()).mean()) < 0.015
    assert View("image 1", image).seen is image


def test_large_images_are_made_smaller_and_small_ones_left_alone() -> None:
    noise = Image.effect_noise((2000, 1000), 60).convert("RGB")
    assert data_uri(noise).startswith("data:image/jpeg;base64,")
    assert len(data_uri(noise)) < 400_000
    assert data_uri(Image.new("RGB", (30, 20), "white")).startswith("data:image/png;base64,")
    assert noise.size == (2000, 1000)
