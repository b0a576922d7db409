"""Tiny models with eyes served by vLLM under a policy, against stock vLLM and transformers."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from tests.profiles import saved
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


def by_transformers(folder, policy, given, tokens=TOKENS, causal=False):
    """What transformers answers; ``causal``: also where image tokens attend in both directions."""
    model = AutoModelForImageTextToText.from_pretrained(folder).eval()
    processor, answers = AutoProcessor.from_pretrained(folder), []
    for one in given:
        shown = one["multi_modal_data"]["image"]
        inputs = processor(text=[one["prompt"]], images=shown, return_tensors="pt")
        if causal:
            inputs.pop("token_type_ids")
        answers.append(expected.answer(model, inputs, policy, tokens))
    return answers


def test_keeping_everything_of_images_is_stock_vllm(tiny_folder):
    qwen2_vl = tiny_folder("qwen2_vl")
    given = prompts(tiny.QWEN_IMAGE)
    stock = served(qwen2_vl, None, given)
    whole = served(qwen2_vl, "mixkv:budget=100%,window=8", given)
    check_same(whole, stock)


CHUNKS = {"max_num_batched_tokens": 400}
QWEN = [
    ("snapkv:budget=25%,window=8", {}),
    ("mixkv:budget=25%,window=8", {}),
    ("lookm:budget=25%", {}),
    ("david:budget=25%", CHUNKS),
    ("csp:budget=25%", CHUNKS),
    ("h2o:budget=25%", {"enable_prefix_caching": True}),
    ("headkv:budget=25%,window=8,profile={headkv}", CHUNKS),
]
LLAVAS = [
    ("llava", "mixkv:budget=25%,window=8", {}),
    ("llava", "prefixkv:budget=25%,profile={prefixkv},when=after_prefill", {}),
    ("llava", "lookm+mixkv.merge:budget=25%", {"max_num_batched_tokens": 128}),
    ("llava_next", "david:budget=25%", {}),
    ("llava_next", "headkv:budget=25%,window=8,profile={headkv}", {}),
]
CASES = [("qwen2_vl", *case) for case in QWEN] + LLAVAS
AGAIN = (  # of methods that meet another of these models, or a Llama in test_llama.py
    ("qwen2_vl", "snapkv:budget=25%,window=8"),
    ("qwen2_vl", "david:budget=25%"),
    ("llava", "mixkv:budget=25%,window=8"),
    ("llava_next", "headkv:budget=25%,window=8,profile={headkv}"),
)


@pytest.mark.parametrize(
    ("model", "spec", "options"),
    [pytest.param(*case, marks=pytest.mark.slow if case[:2] in AGAIN else ()) for case in CASES],
)
def test_images_equal_the_transformers_backend(tiny_folder, model, spec, options):
    folder = tiny_folder(model)
    where, name = Path(folder), folder.split("/")[-1]
    heads = [[0.2, 3.0], [1.0, 0.1], [2.0, 0.4], [0.3, 0.5]]
    policy = spec.format(
        headkv=saved(where, "headkv", heads, name),
        prefixkv=saved(where, "prefixkv", [0.2, 0.45, 0.05, 0.3], name, "25%"),
    )
    given = prompts(tiny.QWEN_IMAGE if model == "qwen2_vl" else "<image>")
    limit = {"image": 2, "video": 0} if model == "qwen2_vl" else {"image": 2}
    more = {"num_gpu_blocks_override": 400, "limit_mm_per_prompt": limit}
    answers = served(folder, policy, given, **more | options)
    assert all(vision.sum() > 60 for vision in answers.vision.values())
    expected.check(answers, by_transformers(folder, policy, given))


def gemma_prompts():
    """Two prompts with text behind their images, and one that ends with its image."""
    first, _, both = prompts("<start_of_image>")
    (picture,) = first["multi_modal_data"]["image"]
    ends = {"prompt": f"{QUESTION * 4}<start_of_image>", "multi_modal_data": {"image": [picture]}}
    return [first, both, ends]


@pytest.mark.parametrize("policy", ["snapkv:budget=25%,window=8", "vnorm:budget=25%"])
def test_images_that_attend_in_both_directions_equal_transformers(tiny_folder, policy):
    """vLLM's kernels for CPUs read them causally, and so is transformers told to."""
    folder = tiny_folder("gemma3")
    given = gemma_prompts()[: 2 if "window" in policy else 3]
    options = {"num_gpu_blocks_override": 400, "limit_mm_per_prompt": {"image": 2}}
    answers = served(folder, policy, given, **options)
    assert {place for _, place in answers.kept} == {0, 1}  # of full attention, of four layers
    expected.check(answers, by_transformers(folder, policy, given, causal=True))


def test_an_image_that_ends_within_the_window_is_refused_where_it_attends_both_ways(tiny_folder):
    from vllm.exceptions import VLLMValidationError

    more = {"skip_tokenizer_init": False, "num_gpu_blocks_override": 128}
    *_, ends = gemma_prompts()
    with engine(tiny_folder("gemma3"), "snapkv:budget=25%,window=8", **more) as llm:
        with pytest.raises(VLLMValidationError, match="attend to each other in both directions"):
            serve(llm, [ends], 4)
        (whole,) = serve(llm, [ends], 4, asked=[{"foveate_policy": "full"}]).answers
    assert len(whole.tokens) == 4
