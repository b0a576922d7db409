"""The reader: lines that are found, columns that are tokens, boxes on the image, and its model."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import ExifTags, Image, ImageDraw, ImageFont
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast

from foveate.data import read_image
from foveate.hf import compress
from foveate.models.token_grids import image_tokens
from foveate_demo.processor import IMAGE
from foveate_reader.detection import Line, line_of, page_slope, regions, rows_of
from foveate_reader.eye import BOX, KIND, ROW_END, SPACE, TEXT, Eye, crop, load_eye
from foveate_reader.model import ReaderForConditionalGeneration, reader_config
from foveate_reader.networks import COLUMN, READABLE
from foveate_reader.processor import ReaderProcessor

ROWS = (("TOTAL:", "12.50"), ("Thank you",))


@pytest.fixture(scope="module")
def eye() -> Eye:
    return load_eye(all_columns=True)


@pytest.fixture(scope="module")
def page() -> tuple[Image.Image, list[list[Line]]]:
    """Two rows of text, and the boxes of their texts."""
    image, rows = Image.new("RGB", (400, 130), "white"), []
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(30)
    for number, texts in enumerate(ROWS):
        row = []
        for at, text in enumerate(texts):
            corner = (20 + 220 * at, 10 + 60 * number)
            draw.text(corner, text, fill="black", font=font)
            left, top, right, bottom = draw.textbbox(corner, text, font)
            row.append(Line(left - 4, top - 5, right + 4, bottom + 5))
        rows.append(row)
    return image, rows


def read_text(eye: Eye, tokens: torch.Tensor) -> str:
    """What the encoder's head reads in tokens of characters."""
    read = eye.encoder.head(tokens[:, :KIND]).argmax(-1).tolist()
    signs = {SPACE: "|", ROW_END: "/"}
    kinds = tokens[:, KIND].tolist()
    return "".join(
        signs.get(int(kind), READABLE[i - 1]) for i, kind in zip(read, kinds, strict=True)
    )


def test_the_encoder_reads_text_and_shortened_it_has_a_token_for_each_character(eye, page):
    tokens = eye.read(*page)
    short = eye.shortened(tokens)
    assert read_text(eye, short) == "TOTAL:|12.50/Thank you/"
    assert len(short) < len(tokens) / 2
    assert torch.equal(eye.shortened(short)[:, KIND], short[:, KIND])


def test_every_column_is_a_strip_of_its_lines_box(eye, page):
    image, rows = page
    tokens = eye.read(image, rows)
    kinds = tokens[:, KIND]
    assert (kinds == SPACE).sum() == 1
    assert (kinds == ROW_END).sum() == len(rows)
    columns = tokens[kinds == TEXT][:, BOX] * torch.tensor([*image.size] * 2)
    starts = iter(columns)
    for line in (line for row in rows for line in row):
        wide = crop(image, line).width // COLUMN
        strips = torch.stack([next(starts) for _ in range(wide)])
        edges = torch.linspace(line.left, line.right, wide + 1)
        torch.testing.assert_close(strips[:, 0], edges[:-1])
        torch.testing.assert_close(strips[:, 2], edges[1:])
        assert strips[:, 1].sub(line.top).abs().max() < 1e-3


def test_regions_are_connected_pixels_above_a_certain_probability():
    probability = torch.zeros(60, 200)
    probability[5:15, 10:90] = 0.9
    probability[5:15, 100:150] = 0.9
    probability[15:20, 85:90] = 0.9  # part of the first by its edge
    probability[30:40, 10:60] = 0.4  # core, but not certain
    probability[50:52, 10:60] = 0.9  # too low
    found = sorted((r.left, r.top, r.right, r.bottom) for r in regions(probability))
    assert found == [(10, 5, 90, 20), (100, 5, 150, 15)]
    assert regions(torch.zeros(4, 4)) == []


@pytest.mark.parametrize("slope", [-0.05, 0.0, 0.04])
def test_rows_of_a_sloping_page_stay_together(slope: float):
    y, x = torch.meshgrid(torch.arange(400.0), torch.arange(600.0), indexing="ij")
    level = y - slope * (x - 300)
    ink = (level % 40 > 10) & (level % 40 < 22) & (level > 40) & (level < 360)
    ink &= (x > 20) & (x < 580) & ((x < 400) | (x > 440))
    found = regions(ink.float() * 0.9)
    assert page_slope(found) == pytest.approx(slope, abs=0.002)
    boxes = [line_of(region, page_slope(found)) for region in found]
    Random(0).shuffle(boxes)
    rows = rows_of(boxes)
    assert [len(row) for row in rows] == [2] * 8
    assert all(row[0].left < row[1].left for row in rows)


def test_lines_that_are_set_close_are_rows_and_marks_in_a_text_are_none():
    above, below = Line(10, 20, 300, 80), Line(20, 45, 280, 105)  # share 35 of 60 pixels
    beside, mark = Line(310, 50, 400, 104), Line(100, 60, 108, 66)
    assert rows_of([mark, beside, below, above]) == [[above], [below, beside]]


def test_the_crop_of_a_sloping_line_is_level():
    image = Image.new("L", (400, 100), 255)
    for x in range(400):
        image.paste(0, (x, round(30 + 0.08 * x), x + 1, round(42 + 0.08 * x)))
    line = Line(50, 30 + 0.08 * 200 - 12, 350, 42 + 0.08 * 200 + 12, 0.08)
    pixels = torch.tensor(list(crop(image, line).convert("L").tobytes())).view(48, -1)
    middles = [torch.nonzero(column < 128).float().mean().item() for column in pixels.T]
    assert max(middles) - min(middles) <= 2
    assert sum(middles) / len(middles) == pytest.approx(23.5, abs=1.5)


@pytest.fixture(scope="module")
def reader(eye: Eye) -> tuple[Any, ReaderProcessor]:
    """A tiny random reader behind the shipped encoder; rows are given, so that no detector runs."""
    vocabulary = {"?": 0, IMAGE: 1, "Question": 2, ":": 3, "What": 4, "Answer": 5}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="?", pad_token="?", padding_side="left",
        additional_special_tokens=[IMAGE],
    )  # fmt: skip
    text = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=6, max_position_embeddings=512, bos_token_id=None,
        eos_token_id=None, pad_token_id=0, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    model = ReaderForConditionalGeneration(reader_config(text, image_token=1)).eval()
    return model, ReaderProcessor(tokenizer, eye)


@pytest.fixture
def prompt(reader, page, monkeypatch) -> Any:
    monkeypatch.setattr("foveate_reader.eye.find_lines", lambda detector, image: page[1])
    return reader[1](images=[page[0]], text="<image>\nQuestion: What?\nAnswer:")


def test_each_image_has_as_many_placeholders_as_tokens_and_a_grid_for_each_line(
    reader, prompt, page
):
    model, processor = reader
    image, rows = page
    vision = prompt["input_ids"][0] == 1
    kinds = prompt["pixel_values"][0, :, KIND]
    assert int(vision.sum()) == len(kinds)
    found = image_tokens(vision, prompt, [image.size], model.config, processor)
    assert found is not None
    (tokens,) = found
    assert tokens.lines
    assert tokens.on(image.size) == (0, 0, *image.size)
    boxes = [line[:4] for row in rows for line in row]
    assert [grid.box for grid in tokens.grids] == [pytest.approx(box, abs=1e-3) for box in boxes]
    in_lines = [index for grid in tokens.grids for index in grid.indices]
    first = int(torch.nonzero(vision)[0])
    assert in_lines == [first + i for i, kind in enumerate(kinds.tolist()) if kind == TEXT]
    beside = tokens.under(boxes[1], image.size)
    assert set(beside) == set(tokens.grids[1].indices)  # and none of the other lines


def test_prompts_of_different_lengths_in_a_batch_have_the_logits_of_each_alone(
    reader, page, monkeypatch
):
    model, processor = reader
    image, rows = page
    other = image.copy()
    other.putpixel((0, 0), (9, 9, 9))

    def lines(detector: Any, shown: Image.Image) -> list[list[Line]]:
        return rows[1:] if shown.getpixel((0, 0)) == (9, 9, 9) else rows

    monkeypatch.setattr("foveate_reader.eye.find_lines", lines)
    text = "<image>\nQuestion: What?\nAnswer:"
    with torch.no_grad():
        both = model(**processor(images=[image, other], text=[text, text])).logits[:, -1]
        alone = [
            model(**processor(images=[one], text=text)).logits[0, -1] for one in (image, other)
        ]
    torch.testing.assert_close(both, torch.stack(alone), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(alone[0], alone[1], atol=1e-3)


def test_an_image_is_looked_at_once_while_it_is_among_the_last(reader, page, monkeypatch):
    looked: list[Image.Image] = []

    def lines(detector: Any, image: Image.Image) -> list[list[Line]]:
        looked.append(image)
        return page[1]

    monkeypatch.setattr("foveate_reader.eye.find_lines", lines)
    images = [Image.new("RGB", (400, 130), (shade, 0, 0)) for shade in range(9)]
    first = reader[1].encode(images[:1])
    again = reader[1].encode([images[0].copy()])
    assert len(looked) == 1
    assert torch.equal(first[1]["pixel_values"], again[1]["pixel_values"])
    reader[1].encode([*images[1:], images[0]])
    assert len(looked) == 10  # eight others have taken its place


def test_a_large_photograph_on_its_side_is_read_upright(eye, page, tmp_path):
    path, exif = tmp_path / "receipt.jpg", Image.Exif()
    exif[ExifTags.Base.Orientation] = 6  # the top of the page is on the right of the file
    sideways = page[0].resize((2400, 780)).transpose(Image.Transpose.ROTATE_90)
    sideways.save(path, exif=exif, quality=70)
    tokens = eye.shortened(eye(read_image(path)))
    assert read_text(eye, tokens) == "TOTAL:|12.50/Thank you/"


def test_all_kept_is_the_stock_cache_and_less_is_not(reader, prompt):
    model, _ = reader
    fed = {
        "max_new_tokens": 4,
        "do_sample": False,
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    with torch.no_grad():
        stock = torch.stack(model.generate(**prompt, **fed).logits)
        with compress(model, "snapkv:budget=100%"):
            kept = torch.stack(model.generate(**prompt, **fed).logits)
        with compress(model, "snapkv:budget=10%"):
            less = torch.stack(model.generate(**prompt, **fed).logits)
    assert torch.equal(stock, kept)
    assert not torch.allclose(stock[1:], less[1:], atol=1e-4)


@pytest.mark.slow  # it loads the language model, and the detector reads a page
def test_the_shipped_reader_finds_the_lines_of_a_page(page):
    from foveate.loading.model import load

    loaded = load("reader")
    assert loaded.sees
    inputs = loaded.reader(images=[page[0]], text="<image>\nQuestion: What is the total?\nAnswer:")
    assert read_text(loaded.reader.eye, inputs["pixel_values"][0]) == "TOTAL:|12.50/Thank you/"
    vision = inputs["input_ids"][0] == loaded.model.config.image_token_index
    sizes = [page[0].size]
    reader = SimpleNamespace(image_processor=loaded.reader)
    (tokens,) = image_tokens(vision, inputs, sizes, loaded.model.config, reader) or ()
    assert len(tokens.grids) == 3
