"""Prompts of every make-up: several images between text, none, nothing else, and video."""

import pytest
import torch

import foveate
from tests import zoo
from tests.pairs import by_turns

from .compare import GREEDY, check_generate, recorded
from .policies import of_method

PAPERS = ("mixkv", "prefixkv", "csp", "david", "lookm")
FAMILIES = ("llava", "llava_onevision", "internvl", "idefics3", "qwen2_vl", "qwen3_vl", "gemma3")

every_paper = pytest.mark.parametrize("paper", PAPERS)


@by_turns(2, paper=PAPERS, family=FAMILIES, lengths={"alone": (70,), "left-padded": (60, 70)})
def test_two_images_between_text(family, paper, lengths):
    check_generate(
        zoo.build(family), of_method(paper), zoo.prompt(family, lengths=lengths, images=2)
    )


@by_turns(1, family=FAMILIES, paper=PAPERS)
def test_no_image(family, paper):
    inputs = zoo.prompt(family, lengths=(31, 40), images=0)
    check_generate(zoo.build(family), of_method(paper), inputs)


def only_an_image(family):
    """The shortest prompt that holds an image: its tokens, and the marks around it."""
    for length in range(1, 60):
        try:
            return zoo.prompt(family, lengths=(length,), images=1)
        except ValueError:
            continue
    raise AssertionError(f"{family} has no prompt of an image alone")


@by_turns(3, family=FAMILIES, paper=PAPERS)
def test_nothing_but_an_image(family, paper):
    inputs = only_an_image(family)
    image = inputs["input_ids"] == zoo.build(family).config.image_token_id
    assert int((~image).sum()) <= 8
    check_generate(zoo.build(family), of_method(paper), inputs)


def film(family, frames=2):
    """The prompt's image as a video of that many equal frames."""
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=(30,))
    ids = inputs["input_ids"][0]
    image = ids == model.config.image_token_id
    first, last = image.nonzero()[0, 0], image.nonzero()[-1, 0] + 1
    shown = torch.full((frames * int(image.sum()),), model.config.video_token_id)
    ids = torch.cat([ids[:first], shown, ids[last:]])[None]
    grid = inputs["image_grid_thw"].clone()
    grid[:, 0] *= frames
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": 2 * (ids == model.config.video_token_id).long(),
        "pixel_values_videos": inputs["pixel_values"].repeat(frames, 1),
        "video_grid_thw": grid,
    }


@every_paper
@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl"])
def test_video(family, paper):
    check_generate(zoo.build(family), of_method(paper), film(family))


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl"])
def test_tokens_of_a_video_are_visual(family):
    model, inputs = zoo.build(family), film(family)
    text = (inputs["input_ids"] != model.config.video_token_id)[0]
    policy = foveate.lookm(budget=int(text.sum()) + 3, recent=1, merging="none")
    with foveate.compress(model, policy), recorded(model, policy) as events:
        model.generate(**inputs, **GREEDY)
    for kept in events[0].kept.values():
        assert bool(kept[0][:, text].all())  # text comes first
        assert kept[0][:, ~text].sum(-1).tolist() == [3] * kept.shape[1]


@every_paper
def test_a_prompt_of_one_token_is_kept(paper):
    model = zoo.build("llama")
    with foveate.compress(model, of_method(paper)) as session:
        session.prefill(input_ids=torch.tensor([[5]]))
    assert session.stats.kept_tokens == 1
