"""The demo model's processor: sizes, counts of image tokens, wording, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from foveate.errors import InvalidInput
from foveate_demo.processor import IMAGE, DemoProcessor, fit, pixel_values, worded


@pytest.fixture(scope="module")
def processor() -> DemoProcessor:
    """Words are tokens, as far as they are known."""
    vocabulary = {"?": 0, IMAGE: 1, "Question": 2, ":": 3, "What": 4, "Image": 5, "Answer": 6}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        unk_token="?",
        pad_token="?",
        padding_side="left",
        additional_special_tokens=[IMAGE],
    )
    return DemoProcessor(tokenizer)


def image(width: int, height: int) -> Image.Image:
    return Image.linear_gradient("L").resize((width, height)).convert("RGB")


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        ((384, 24), 1),
        ((384, 240), 10),
        ((768, 480), 10),
        ((100, 100), 16),
        ((384, 3), 1),
        ((10, 4000), 32),
        ((4000, 10), 1),
        ((383, 250), 10),
    ],
)
def test_images_become_whole_rows_of_cells(given: tuple[int, int], rows: int) -> None:
    fitted = fit(image(*given))
    assert fitted.size == (384, 24 * rows)
    assert fitted.mode == "RGB"


def test_an_image_that_fits_is_not_touched() -> None:
    one = image(384, 48)
    assert fit(one).tobytes() == one.tobytes()


def test_what_is_clear_in_an_image_is_white() -> None:
    one = Image.new("LA", (384, 24), (0, 0))
    assert fit(one).tobytes() == Image.new("RGB", (384, 24), "white").tobytes()


def test_pixels_are_centred_and_padded_below() -> None:
    white, black = (Image.new("RGB", (384, h), c) for h, c in ((24, "white"), (48, "black")))
    pixels = pixel_values([white, black])
    assert pixels.shape == (2, 3, 48, 384)
    assert pixels.dtype == torch.float32
    assert torch.equal(pixels[0, :, :24].unique(), torch.tensor([2.0]))
    assert torch.equal(pixels[0, :, 24:].unique(), torch.tensor([0.0]))
    assert torch.equal(pixels[1].unique(), torch.tensor([-2.0]))


def test_every_image_has_as_many_tokens_as_cells(processor: DemoProcessor) -> None:
    inputs = processor(
        images=[image(384, 24), image(384, 72), image(384, 48)],
        text=["Image <image> What <image> ?", "<image>"],
    )
    ids = inputs["input_ids"]
    assert (ids == 1).sum(1).tolist() == [16 + 48, 32]
    assert inputs["image_sizes"].tolist() == [[24, 384], [72, 384], [48, 384]]
    assert inputs["pixel_values"].shape == (3, 3, 72, 384)
    assert inputs["attention_mask"].sum(1).tolist() == [16 + 48 + 3, 32]
    assert inputs["attention_mask"][1, -32:].all()  # padded on the left
    assert ids[0].tolist() == [5, *[1] * 16, 4, *[1] * 48, 0]


def test_one_image_and_one_text_need_no_lists(processor: DemoProcessor) -> None:
    alone = processor(image(384, 24), "<image> What ?")
    listed = processor([image(384, 24)], ["<image> What ?"])
    assert all(torch.equal(alone[name], listed[name]) for name in listed)


def test_text_alone_has_no_pixels(processor: DemoProcessor) -> None:
    assert set(processor(text="What ?")) == {"input_ids", "attention_mask"}


@pytest.mark.parametrize(("text", "images"), [("What ?", 1), ("<image>", 0), ("<image><image>", 1)])
def test_images_and_places_must_agree(processor: DemoProcessor, text: str, images: int) -> None:
    with pytest.raises(InvalidInput, match=rf"{text.count('<image>')} .* {images} image"):
        processor(images=[image(384, 24)] * images, text=text)


def test_other_frameworks_are_refused(processor: DemoProcessor) -> None:
    with pytest.raises(InvalidInput, match="'np'"):
        processor(text="What ?", return_tensors="np")


def test_one_image_stands_alone_and_several_are_numbered() -> None:
    shown = {"type": "image", "image": image(384, 24)}
    ask = {"type": "text", "text": "What is it?"}
    one, images = worded([{"role": "user", "content": [shown, ask]}])
    assert one == "<image>\nQuestion: What is it?\nAnswer:"
    assert images == [shown["image"]]
    two, _ = worded([{"role": "user", "content": [shown, shown, ask]}])
    assert two == "Image 1:\n<image>\nImage 2:\n<image>\nQuestion: What is it?\nAnswer:"


def test_images_of_later_messages_leave_earlier_ones_as_they_are() -> None:
    shown = {"type": "image", "image": image(384, 24)}
    turns = [
        {"role": "user", "content": [shown, {"type": "text", "text": "Which day?"}]},
        {"role": "assistant", "content": "Monday"},
        {"role": "user", "content": [shown, {"type": "text", "text": "And here?"}]},
    ]
    first, _ = worded(turns[:2], continued=True)
    both, _ = worded(turns)
    assert both == f"{first}\nImage 2:\n<image>\nQuestion: And here?\nAnswer:"


def test_one_image_may_be_numbered_as_more_may_follow(processor: DemoProcessor) -> None:
    shown = [{"type": "image"}, {"type": "text", "text": "Which day?"}]
    text = processor.apply_chat_template([{"role": "user", "content": shown}], add_vision_id=True)
    assert text == "Image 1:\n<image>\nQuestion: Which day?\nAnswer:"


def test_turns_follow_each_other() -> None:
    text, images = worded(
        [
            {"role": "user", "content": "What is it?"},
            {"role": "assistant", "content": "A bird."},
            {"role": "user", "content": [{"type": "text", "text": "Where?"}]},
        ]
    )
    assert text == "Question: What is it?\nAnswer: A bird.\nQuestion: Where?\nAnswer:"
    assert images == []


def test_a_continued_message_is_left_open_and_conversations_come_in_batches(
    processor: DemoProcessor,
) -> None:
    said = [{"role": "user", "content": "What"}, {"role": "assistant", "content": "A bird"}]
    assert processor.apply_chat_template(said, continue_final_message=True) == (
        "Question: What\nAnswer: A bird"
    )
    shown = {"role": "user", "content": [{"type": "image", "image": image(384, 24)}]}
    assert processor.apply_chat_template([[shown], said[:1]]) == [
        "<image>\nAnswer:",
        "Question: What\nAnswer:",
    ]
    inputs = processor.apply_chat_template([[shown], said[:1]], tokenize=True)
    assert inputs["attention_mask"].sum(1).tolist() == [18, 5]


def test_an_image_may_be_a_file(processor: DemoProcessor, tmp_path: Path) -> None:
    image(384, 24).save(tmp_path / "a.png")
    for source in ("image", "url", "path"):
        _, (read,) = worded(
            [{"role": "user", "content": [{"type": "image", source: str(tmp_path / "a.png")}]}]
        )
        assert read.tobytes() == image(384, 24).tobytes()
    (tmp_path / "b.png").write_text("no image")
    for part, says in (
        ({"type": "image", "url": str(tmp_path / "b.png")}, "b.png"),
        ({"type": "image", "image": 3}, "'int'"),
        ({"type": "video", "url": "a.mp4"}, "'video'"),
    ):
        with pytest.raises(InvalidInput, match=says):
            worded([{"role": "user", "content": [part]}])


def test_the_template_words_and_reads(processor: DemoProcessor) -> None:
    content = [{"type": "image", "image": image(384, 24)}, {"type": "text", "text": "What"}]
    chat = [{"role": "user", "content": content}]
    assert processor.apply_chat_template(chat) == "<image>\nQuestion: What\nAnswer:"
    inputs = processor.apply_chat_template(
        chat, tokenize=True, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    assert inputs["input_ids"].tolist() == [[*[1] * 16, 2, 3, 4, 6, 3]]
