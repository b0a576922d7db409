"""Later turns that bring images, in models that place images on several axes (M-RoPE): as
docs/howto/cache.md has them, against the whole conversation read anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from transformers import DynamicCache

import foveate
from foveate.errors import InvalidInput, UnsupportedModel
from foveate.hf.model.internals import CACHE, rope_offsets
from foveate.hf.model.modality import visual_tokens
from tests import census, zoo
from tests.zoo.limits import MROPE

WHOLE = "snapkv:budget=100%,window=4"
SIZES = ("image_grid_thw", "target_sizes")
REFUSED = ("hunyuan_vl",)
NEAR = {"atol": 1e-4, "rtol": 1e-4}  # random weights: a wrong position moves logits by 0.1 and more

pytestmark = pytest.mark.filterwarnings("ignore")


def first_logits(model, inputs, **how):
    """The logits after a prompt, what was answered, and what else ``generate`` returns."""
    settings = {"max_new_tokens": 3, "do_sample": False, "return_dict_in_generate": True}
    with torch.no_grad():
        output = model.generate(**inputs, **how, **settings, output_logits=True)
    return output.logits[0], output.sequences[:, -3:]


def conversation(name, lengths, images=(1, 0, 1)):
    """A first turn, and what makes each later one of the conversation so far and an answer."""
    first = zoo.prompt(name, lengths=lengths)

    def later(so_far, answer, number):
        so_far = zoo.append(name, so_far, answer)
        turn = zoo.extend(name, so_far, new_text=7, images=images[number], seed=number)
        return turn.full, {k: x for k, x in turn.cached.items() if k != "position_ids"}

    return first, later


@pytest.mark.parametrize("lengths", [(40,), (40, 52)], ids=["alone", "padded"])
@pytest.mark.parametrize("name", MROPE)
def test_every_turn_of_a_chat_is_placed_as_in_the_whole_conversation(name, lengths):
    """an image in a later turn, with M-RoPE (Qwen-VL, GLM-V and the like) | works | placed as in
    the whole conversation; HunYuan-VL, which counts the images of all rows, is refused
    """
    model, (so_far, later) = zoo.build(name), conversation(name, lengths)
    turns = []
    with foveate.compress(model, WHOLE) as session:
        _, answer = first_logits(model, so_far)
        for number in range(3):
            so_far, turn = later(so_far, answer, number)
            session.rearm()
            logits, answer = first_logits(model, turn, **{CACHE: session.cache})
            turns.append((so_far, logits))
    for whole, logits in turns:
        torch.testing.assert_close(logits, first_logits(model, whole)[0], **NEAR)


def without_types(turn, seen):
    return {k: x for k, x in turn.items() if k != "mm_token_type_ids"}


def new_ids_alone(turn, seen):
    return {**turn, "input_ids": turn["input_ids"][:, seen:]}


def as_it_is(turn, seen):
    return turn


@pytest.mark.parametrize("said", [as_it_is, without_types, new_ids_alone])
@pytest.mark.parametrize("way", ["generate", "forward", "chunks", "loaded", "forked"])
def test_a_later_image_is_placed_whichever_way_its_turn_is_read(way, said, tmp_path):
    name = MROPE[("generate", "forward", "chunks", "loaded", "forked").index(way) % len(MROPE)]
    if way == "chunks" and zoo.chunks_limit(name):
        pytest.skip(zoo.chunks_limit(name))
    model, (first, later) = zoo.build(name), conversation(name, (40, 52))
    with foveate.compress(model, WHOLE) as session:
        _, answer = first_logits(model, first)
        whole, turn = later(first, answer, 0)
        held, seen = session.cache, session.cache.get_seq_length()
        if way == "loaded":
            held = session.load(session.save(tmp_path / "held.safetensors"))
        if way == "forked":
            held = session.fork()
        zoo_again = zoo.prompt(name, lengths=(60,), images=2, seed=9)
        session.prefill(**zoo_again)  # the model's own note is of another prompt now
        session.rearm(held)
        turn = said(turn, seen)
        if way == "forward":
            new = ("input_ids", "mm_token_type_ids")
            turn = {k: x[:, seen - x.shape[1] :] if k in new else x for k, x in turn.items()}
            turn["input_ids"] = whole["input_ids"][:, seen:]
            with torch.no_grad():
                logits = model(**turn, **{CACHE: held}).logits[:, -1]
        else:
            how = {"prefill_chunk_size": 5} if way == "chunks" else {}
            logits, _ = first_logits(model, turn, **how, **{CACHE: held})
    torch.testing.assert_close(logits, first_logits(model, whole)[0], **NEAR)


@pytest.mark.parametrize("name", MROPE)
def test_text_goes_on_behind_an_image_whose_positions_were_given_by_hand(name):
    model, (first, later) = zoo.build(name), conversation(name, (40,), images=(1, 0))
    with foveate.compress(model, WHOLE) as session:
        _, answer = first_logits(model, first)
        turn = zoo.extend(name, zoo.append(name, first, answer), new_text=7, images=1)
        _, answer = first_logits(model, turn.cached, **{CACHE: session.cache})
        whole, text = later(turn.full, answer, 1)
        logits, _ = first_logits(model, text, **{CACHE: session.cache})
    torch.testing.assert_close(logits, first_logits(model, whole)[0], **NEAR)


@pytest.mark.parametrize("images", [0, 1])
@pytest.mark.parametrize("name", ["llava", "llava_next", "internvl", "gemma3", "qwen2_vl"])
def test_old_pixels_that_are_handed_in_again_are_an_error(name, images):
    """the pixels of earlier turns given again in a later one, as processors make them of a whole
    conversation | refused | the cache holds them: give those of new images alone
    """
    model, (first, _) = zoo.build(name), conversation(name, (40,))
    with foveate.compress(model, WHOLE) as session:
        _, answer = first_logits(model, first)
        whole = zoo.extend(name, zoo.append(name, first, answer), new_text=7, images=images).full
        with pytest.raises(InvalidInput, match="earlier ones are in the cache"):
            first_logits(model, whole, **{CACHE: session.cache})


@pytest.mark.parametrize("how", [{"num_beams": 3}, {"do_sample": True, "num_return_sequences": 2}])
def test_a_turn_of_fewer_rows_than_the_cache_has_is_an_error(how):
    """going on with one row after beams or several sequences | refused | by rows of the cache"""
    model, first = zoo.build("llava"), zoo.prompt("llava")
    with foveate.compress(model, WHOLE) as session:
        output = model.generate(**first, **how, max_new_tokens=3)
        turn = torch.cat([output[:1], output[:1, -5:]], 1)
        with pytest.raises(InvalidInput, match=r"the cache has [23] rows"):
            first_logits(model, {"input_ids": turn}, **{CACHE: session.fork()})
        one = session.fork()
        one.batch_select_indices(torch.tensor([0]))
        first_logits(model, {"input_ids": turn}, **{CACHE: one})


def test_sizes_of_fewer_images_than_a_turn_has_are_an_error():
    model, (first, later) = zoo.build("qwen2_vl"), conversation("qwen2_vl", (40,), images=(2,))
    with foveate.compress(model, WHOLE) as session:
        _, answer = first_logits(model, first)
        _, turn = later(first, answer, 0)
        turn["image_grid_thw"] = turn["image_grid_thw"][:1]
        with pytest.raises(InvalidInput, match="more images than the inputs have sizes"):
            first_logits(model, turn, **{CACHE: session.cache})


# Every other family, from the census: two images, read in one turn and in two


def two_turns(inputs, vision):
    """A conversation of two images cut between them, each turn with its own pixels."""
    edges = [((~row).nonzero()[:, 0], row.nonzero()[:, 0]) for row in vision]
    last_of_first = max(int(text[text > images[0]][0]) for text, images in edges)
    first_of_last = min(
        int(images[images > text[text < images[-1]][-1]][0]) for text, images in edges
    )
    cut = (last_of_first + first_of_last) // 2
    key = next(name for name in SIZES if name in inputs)
    sizes, pixels = inputs[key], inputs["pixel_values"]
    axis = 0 if key == SIZES[0] else -1
    each = sizes.prod(-1) * pixels.shape[axis] // sizes.prod(-1).sum()
    parts = pixels.split(each.tolist(), axis)
    made = []
    for turn, end in enumerate((cut, vision.shape[1])):
        mine = range(turn, len(sizes), 2)
        made.append(
            {k: x[:, :end] if x.shape == vision.shape else x for k, x in inputs.items()}
            | {key: sizes[list(mine)], "pixel_values": torch.cat([parts[i] for i in mine], axis)}
        )
    return made


OTHERS = {
    "cohere_compass": "cohere_compass",
    "cosmos3_edge": "cosmos3_edge",
    "cosmos3_omni": "cosmos3_omni",
    "ernie4_5_vl_moe": "ernie4_5_vl_moe",
    "exaone4_5": "exaone4_5",
    "glm46v": "glm46v",
    "glm4v": "glm4v",
    "glm4v_moe": "glm4v_moe",
    "glm_ocr": "glm_ocr",
    "glmga": "glm46v",
    "hunyuan_vl": "hunyuan_vl",
    "hy_v4_vl": "hy_v4_vl",
    "minicpmv4_7": "minicpmv4_7",
    "paddleocr_vl": "paddleocr_vl",
    "qwen2_5_omni_thinker": "qwen2_5_omni",
    "qwen3_5": "qwen3_5",
    "qwen3_5_moe": "qwen3_5_moe",
    "qwen3_omni_moe_thinker": "qwen3_omni_moe",
    "qwen4_exp": "qwen4_exp",
}
"""Types with such positions, and the module of transformers that has them."""

NOT_ASKED = {"glm_image": "it makes images"}


def test_every_family_with_such_positions_is_tried():
    modules = Path(transformers.__file__).parent.glob("models/*/modeling_*.py")
    found = {one.parent.name for one in modules if "def get_rope_index" in one.read_text("utf-8")}
    assert found <= {*OTHERS.values(), *MROPE, *NOT_ASKED}


@pytest.mark.parametrize("name", [name for name in OTHERS if name in census.IMAGE_TEXT])
def test_a_later_image_is_placed_in_every_other_family(name):
    """Alone and in a padded batch: exact, or refused by the reason."""
    if name == "ernie4_5_vl_moe" and zoo.before("5.24"):
        pytest.skip("on 5.4.0 its experts are told the types of a whole conversation on a cache")
    found = census.build(name)
    model = found.model
    assert rope_offsets(model)
    for lengths in ((80,), (80, 72)):
        whole = found.prompt(lengths, images=2)
        first, last = two_turns(whole, visual_tokens(model.config, whole["input_ids"]))
        try:
            block = foveate.compress(model, WHOLE)
        except UnsupportedModel:
            return
        with block as session:
            session.prefill(**first)
            if name in REFUSED:
                with pytest.raises(UnsupportedModel, match="counts the images of a whole"):
                    first_logits(model, last, **{CACHE: session.cache})
                continue
            logits, _ = first_logits(model, last, **{CACHE: session.cache})
        torch.testing.assert_close(logits, first_logits(model, whole)[0], **NEAR)


def test_a_model_out_of_a_block_is_placed_as_before():
    model, inputs = zoo.build("qwen2_vl"), zoo.prompt("qwen2_vl")
    with foveate.compress(model, WHOLE):
        pass
    assert "_prepare_position_ids_for_generation" not in vars(model)
    held = DynamicCache(config=model.config)
    torch.testing.assert_close(
        first_logits(model, inputs, **{CACHE: held})[0], first_logits(model, inputs)[0]
    )
