"""A converted model is asked in its authors' words, and sees what their code would show it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from foveate.errors import InvalidInput, InvalidParameter
from foveate.prompts.evidence import on_images
from foveate.prompts.prompt import read, read_chat, text_part
from foveate_lab.convert import bpe_ranks
from foveate_lab.convert import sentencepiece as sp
from foveate_lab.eval.padding import load
from tests.zoo.directory import save_llava

from . import originals

VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the user's questions. USER: "
)
WORDED = {
    "llava": f"<s>{VICUNA}@\nWhat is it? ASSISTANT:",
    "mobilevlm": f"<s>{VICUNA}@\nWhat is it? ASSISTANT:",
    "internvl_llama": f"<s>{VICUNA}<img>@</img>\nWhat is it? ASSISTANT:",
    "internvl": "<img>@</img>\nWhat is it?<|im_end|><|im_start|>assistant\n",
    "qwen_vl": "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
    "Picture 1: <img>@</img>\nWhat is it?<|im_end|>\n<|im_start|>assistant\n",
}
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def photo(width, height):
    """An image of smooth noise."""
    small = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def normalized(image, statistics):
    """What torchvision's ToTensor and Normalize make of an image."""
    mean, std = (np.array(each) for each in statistics)
    return torch.tensor((np.asarray(image) / 255 - mean) / std).permute(2, 0, 1).float()


def squared(image):
    """The authors' expand2square: in the middle of a square of CLIP's mean color."""
    side = max(image.size)
    square = Image.new("RGB", (side, side), tuple(int(255 * one) for one in CLIP[0]))
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return square


@pytest.mark.parametrize("name", WORDED)
def test_prompt_is_worded_as_in_the_authors_code(make, name):
    loaded = make(name).loaded
    prompt = read(loaded, "What is it?", [photo(24, 24)])
    ids = prompt.inputs["input_ids"][0]
    text = loaded.tokenizer.decode(ids[~prompt.vision])
    marked = WORDED[name].replace("@", "")
    # a space in front of each text between special tokens is what SentencePiece has there
    assert text.replace(" ", "").endswith(marked.replace(" ", ""))
    first = int(prompt.vision.nonzero()[0])
    before = loaded.tokenizer.decode(ids[:first]).replace(" ", "")
    assert before.endswith(WORDED[name].split("@")[0].replace(" ", ""))


@pytest.mark.parametrize("name", WORDED)
def test_patches_have_known_places(make, name):
    loaded = make(name).loaded
    images = [photo(*size) for size in ((90, 30), (20, 70), (24, 24))]
    prompt = read(loaded, "?", images)
    found = on_images(loaded, prompt, images)
    assert sum(len(one.indices) for one in found) == prompt.visual_tokens
    assert [len(one.grids) for one in found] == ([2, 2, 1] if "internvl" in name else [1, 1, 1])


@pytest.mark.parametrize("name", ["llava", "qwen_vl", "internvl"])
def test_no_image_is_needed(make, name):
    prompt = read_chat(make(name).loaded, [{"role": "user", "content": [text_part("Is it?")]}])
    assert prompt.images == prompt.visual_tokens == 0


def test_llava_sees_a_padded_square(make):
    image = photo(40, 22)
    pixels = read(make("llava").loaded, "?", [image]).inputs["pixel_values"]
    resized = squared(image).resize((12, 12), Image.Resampling.BICUBIC)
    torch.testing.assert_close(pixels[0], normalized(resized, CLIP), atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", [(320, 80), (60, 200), (40, 40)])
def test_both_layouts_of_llava_give_the_same_pixels_and_tokens(make, tmp_path, size):
    """As on the hub, whose processor crops unless it is told to pad, and converted."""
    image = photo(*size)
    hub = str(save_llava(tmp_path / "hub"))
    given, converted = (
        read(loaded, "?", [image]) for loaded in (load(hub, pad_images=True), make("llava").loaded)
    )
    assert torch.equal(given.inputs["pixel_values"], converted.inputs["pixel_values"])
    assert given.visual_tokens == converted.visual_tokens == 9
    cropped = read(load(hub), "?", [image]).inputs["pixel_values"]
    assert torch.equal(cropped, given.inputs["pixel_values"]) is (size[0] == size[1])


def test_images_are_padded_for_llava_alone(make):
    with pytest.raises(InvalidParameter, match=r"pad_images .* this is GotOcr2ImageProcessorPil"):
        load(str(make("internvl").target), pad_images=True)


def test_qwen_vl_sees_a_stretched_square(make):
    image = photo(40, 22)
    pixels = read(make("qwen_vl").loaded, "?", [image]).inputs["pixel_values"]
    resized = image.resize((32, 32), Image.Resampling.BICUBIC)
    torch.testing.assert_close(pixels[0], normalized(resized, CLIP), atol=1e-5, rtol=0)


def test_internvl_sees_tiles_and_a_thumbnail(make):
    image = photo(90, 30)  # 3 : 1, so three tiles in a row
    prompt = read(make("internvl").loaded, "?", [image])
    canvas = image.resize((72, 24), Image.Resampling.BICUBIC)
    tiles = [canvas.crop((24 * i, 0, 24 * i + 24, 24)) for i in range(3)]
    tiles.append(image.resize((24, 24), Image.Resampling.BICUBIC))
    expected = torch.stack([normalized(tile, IMAGENET) for tile in tiles])
    torch.testing.assert_close(prompt.inputs["pixel_values"], expected, atol=1e-5, rtol=0)
    assert prompt.visual_tokens == 4 * 9


def test_answers_end_where_the_authors_stop(make):
    def stops(name):
        one = make(name).loaded
        found = one.model.generation_config.eos_token_id
        return one.tokenizer.convert_ids_to_tokens(found if isinstance(found, list) else [found])

    assert stops("llava") == ["</s>"]
    assert stops("internvl") == ["</s>", "<|im_end|>"]
    assert stops("qwen_vl") == ["<|endoftext|>", "<|im_end|>", "<|im_start|>"]


def test_more_places_than_images_is_said(make):
    reader = make("internvl").loaded.reader
    with pytest.raises(InvalidInput, match=r"1 '<IMG_CONTEXT>' placeholder\(s\), but 2 image"):
        reader(text="<IMG_CONTEXT> ?", images=[photo(24, 24)] * 2)


def test_qwen_vl_refuses_what_it_was_not_trained_to_read(make):
    model = make("qwen_vl").loaded.model
    with pytest.raises(InvalidInput, match=r"513 tokens, but Qwen-VL .* up to 512"):
        model(input_ids=torch.ones(1, 513, dtype=torch.long))


def test_sentencepiece_merges_by_score_and_falls_back_on_bytes(make):
    tokenizer = sp.tokenizer(make("llava").source)
    pieces = tokenizer.encode("the hen\u00e9\n", add_special_tokens=False).tokens
    assert pieces == ["\u2581the", "\u2581", "he", "n", "<0xC3>", "<0xA9>", "<0x0A>"]
    assert tokenizer.decode(tokenizer.encode("the hen\u00e9\n").ids) == "the hen\u00e9\n"


def test_ranks_are_merged_in_their_order(make):
    path = make("qwen_vl").source / "qwen.tiktoken"
    tokenizer = bpe_ranks.tokenizer(path, r"\s?\w+|\s+", ("<end>",))
    assert tokenizer.encode("in the<end>").ids == [259, 261, originals.QWEN_VOCAB - 217]
    assert tokenizer.decode(tokenizer.encode("\u00e9 the\u0301").ids) == "\u00e9 th\u00e9"  # NFC
