"""Tiny models with eyes served by vLLM under a policy, against stock vLLM and transformers."""

import numpy as np
import pytest
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from tests.serving import expected, tiny
from tests.serving.engine import check_same, engine, serve

TOKENS = 8
QUESTION = "what is this and that?"


def noise(seed, width, height):
    pixels = np.random.RandomState(seed).randint(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def chat(image, pictures):
    said = image * pictures + QUESTION
    return f"<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n"


def prompts(image):
    """Three prompts: images of different sizes, and two images at once."""
    shown = [[noise(0, 420, 280)], [noise(1, 336, 420)], [noise(2, 168, 224), noise(3, 280, 140)]]
    return [
        {"prompt": chat(image, len(pictures)), "multi_modal_data": {"image": pictures}}
        for pictures in shown
    ]


def served(folder, policy, given, tokens=TOKENS, **options):
    more = {"skip_tokenizer_init": False, "limit_mm_per_prompt": {"image": 2, "video": 0}}
    with engine(folder, policy, **more | options) as llm:
        return serve(llm, given, tokens)


def by_transformers(folder, policy, given, tokens=TOKENS):
    model = AutoModelForImageTextToText.from_pretrained(folder).eval()
    processor = AutoProcessor.from_pretrained(folder)
    return [
        expected.answer(
            model,
            processor(
                text=[one["prompt"]], images=one["multi_modal_data"]["image"], return_tensors="pt"
            ),
            policy,
            tokens,
        )
        for one in given
    ]


def test_keeping_everything_of_images_is_stock_vllm(tiny_folder):
    qwen2_vl = tiny_folder("qwen2_vl")
    given = prompts(tiny.QWEN_IMAGE)
    stock = served(qwen2_vl, None, given)
    whole = served(qwen2_vl, "mixkv:budget=100%,window=8", given)
    check_same(whole, stock)


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("snapkv:budget=25%,window=8", {}),
        ("mixkv:budget=25%,window=8", {}),
        ("lookm:budget=25%", {}),
        ("david:budget=25%", {"max_num_batched_tokens": 400}),
    ],
)
def test_images_under_mrope_equal_the_transformers_backend(tiny_folder, policy, options):
    qwen2_vl = tiny_folder("qwen2_vl")
    given = prompts(tiny.QWEN_IMAGE)
    answers = served(qwen2_vl, policy, given, **options)
    assert all(vision.sum() > 60 for vision in answers.vision.values())
    expected.check(answers, by_transformers(qwen2_vl, policy, given))


@pytest.mark.parametrize(
    ("model", "policy"),
    [("llava", "mixkv:budget=25%,window=8"), ("llava_next", "david:budget=25%")],
)
def test_images_of_llavas_equal_the_transformers_backend(tiny_folder, model, policy):
    folder, given = tiny_folder(model), prompts("<image>")
    limit = {"limit_mm_per_prompt": {"image": 2}}
    answers = served(folder, policy, given, **limit)
    assert all(vision.sum() > 60 for vision in answers.vision.values())
    expected.check(answers, by_transformers(folder, policy, given))
