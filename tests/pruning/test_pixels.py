"""Patches whose pixels repeat others are not encoded, or not read: the stock model with these
hidden, in the encoder and in the decoder.
"""

from contextlib import nullcontext

import pytest
import torch
from transformers import DynamicCache

import foveate
from foveate.errors import InvalidInput, UnsupportedModel
from foveate.hf.model.internals import CACHE
from tests import zoo
from tests.conformance.compare import GREEDY, TOLERANCE, difference
from tests.conformance.oracle import event_of, oracle
from tests.pairs import by_turns, in_step
from tests.zoo.family import AFTER_IMAGE, BEFORE_IMAGE, VIDEO

from .compare import BATCHES, hidden_of, recorded
from .screens import PIXTRAL, masked, pixtral, pixtral_inputs, screen, tokens_left_out
from .test_oracle import BEHIND, FAMILIES

BEFORE = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", PIXTRAL]
"""Whose encoders leave patches out."""
BEHIND_ENCODER = ["llava", "internvl", "idefics3", "smolvlm", "paligemma", "mobilevlm"]
PACKED = ["llava_next", "llava_onevision"]
EXACT, NEAR = "pixelprune.prune", "pixelprune.prune(tolerance=0.001,distance=rmse)"
"""Of these images, both leave out the same."""


def given(family, lengths=(23, 31, 40), images=1, seed=0):
    """A model, and a prompt whose images are screens."""
    if family == PIXTRAL:
        return pixtral(), screen(family, pixtral_inputs(), seed)
    return zoo.build(family), screen(family, zoo.prompt(family, lengths=lengths, images=images))


def check(family, policy, model, inputs, **how):
    """``generate`` equals the stock model's, in which the left-out patches are hidden."""
    left_out = tokens_left_out(family, inputs)
    assert 0 < sum(left_out) < len(left_out)
    settings = {**GREEDY, **how}
    with foveate.compress(model, policy), recorded(model, policy) as read:
        ours = model.generate(**inputs, **settings)
    dropped = read.hidden[0][:: settings.get("num_beams", 1)]
    visual = inputs["input_ids"] == zoo.IMAGE
    assert dropped[visual].tolist() == left_out
    assert not bool(dropped[~visual].any())
    first = policy.prune.encoder_layer
    hiding = masked(model, inputs, left_out, first) if family in BEFORE else nullcontext()
    with oracle(model, *read.events, hidden=read.hidden), hiding:
        theirs = model.generate(**inputs, **settings)
    assert difference(ours, theirs) <= TOLERANCE
    return read, ours


@by_turns(family=[*BEFORE, *BEHIND_ENCODER], cut=[EXACT, NEAR], behind=BEHIND, lengths=BATCHES)
def test_repeated_patches_equal_the_stock_model_with_these_masked(family, cut, behind, lengths):
    check(family, foveate.policy(f"{cut}+{behind}"), *given(family, lengths))


@in_step(1, family=BEFORE, layer=[1, 2, 99], behind=["full", "snapkv:budget=60%,window=4"])
def test_patches_that_the_first_layers_of_the_encoder_read(family, layer, behind):
    policy = foveate.policy(f"pixelprune.prune(encoder_layer={layer})+{behind}")
    check(family, policy, *given(family))


@by_turns(1, family=[*BEFORE, "llava", "internvl"], behind=["full", "h2o:budget=60%"])
def test_several_images_and_beams(family, behind):
    model, inputs = given(family, (60, 70), images=2)
    check(family, foveate.policy(f"{EXACT}+{behind}"), model, inputs, num_beams=2)


@pytest.mark.parametrize("family", BEFORE)
def test_the_encoder_that_sees_all_patches_says_something_else(family):
    """The oracle can fail: masks in the encoder matter."""
    model, inputs = given(family)
    policy = foveate.policy(f"{EXACT}+full")
    read, ours = check(family, policy, model, inputs)
    with oracle(model, *read.events, hidden=read.hidden):
        theirs = model.generate(**inputs, **GREEDY)
    assert difference(ours, theirs) > 10 * TOLERANCE


@pytest.mark.parametrize("family", [*(name for name in FAMILIES if name != "qwen_vl"), PIXTRAL])
def test_distinct_pixels_are_bit_identical_to_no_pruning(family):
    model = pixtral() if family == PIXTRAL else zoo.build(family)
    inputs = pixtral_inputs() if family == PIXTRAL else zoo.prompt(family, lengths=(23, 31, 40))
    stock = model.generate(**inputs, **GREEDY)
    with foveate.compress(model, f"{EXACT}+full") as session:
        ours = model.generate(**inputs, **GREEDY)
        assert session.stats.computed.min() == 1
    assert all(torch.equal(a, b) for a, b in zip(ours.logits, stock.logits, strict=True))


@pytest.mark.parametrize("family", PACKED)
def test_of_tiles_tokens_go_whose_patches_are_all_repeated(family):
    """The overview comes first, with a token for each patch; ends of lines stay."""
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=(40,))
    pixels = inputs["pixel_values"].clone()
    pixels[:, 0, 0, :, 4:] = pixels[:, 0, 0, :, :1]  # the overview's right half, partly equal
    pixels[:, 1:] = 1.0
    inputs["pixel_values"] = pixels
    with foveate.compress(model, f"{EXACT}+full") as session:
        cache = session.prefill(**inputs)
    dropped = hidden_of(cache)[0][0, (inputs["input_ids"] == zoo.IMAGE)[0]].tolist()
    assert dropped[:4] == [False] * 4
    tiles = dropped[4:]
    assert any(tiles)
    assert not tiles[-1]


@in_step(family=BEFORE[:4], behind=["full", "snapkv:budget=60%,window=4", "h2o:budget=60%"])
def test_a_later_turn_is_encoded_whole_unless_it_is_compressed(family, behind):
    model, first = given(family, (40,))
    turn = zoo.extend(family, first, new_text=24, images=1).cached
    turn = screen(family, turn, seed=1)
    policy = f"{EXACT}+{behind}"
    for again in (False, True):
        with foveate.compress(model, policy) as session:
            cache = session.prefill(**first)
            events = [event_of(cache)]
            before = int(hidden_of(cache)[0].sum())
            if again:
                session.rearm(cache)
            ours = model.generate(**turn, **{CACHE: cache}, **GREEDY)
            events += [event_of(cache)] if again else []
            hidden = hidden_of(cache)
        more = tokens_left_out(family, turn) if again else []
        assert int(hidden[0].sum()) == before + sum(more)
        stock = DynamicCache(config=model.config)
        with oracle(model, *events, hidden=hidden):
            with masked(model, first, tokens_left_out(family, first)):
                model(**first, **{CACHE: stock})
            with masked(model, turn, more) if again else nullcontext():
                theirs = model.generate(**turn, **{CACHE: stock}, **GREEDY)
        assert difference(ours, theirs) <= TOLERANCE


def test_a_prompt_in_chunks_whose_image_is_encoded_once():
    model, inputs = given("qwen2_5_vl", (40,))
    settings = {**GREEDY, "prefill_chunk_size": 13}
    with foveate.compress(model, f"{EXACT}+full") as session:
        ours = model.generate(**inputs, **settings)
        event, hidden = event_of(session.cache), hidden_of(session.cache)
    left_out = tokens_left_out("qwen2_5_vl", inputs)
    assert int(hidden[0].sum()) == sum(left_out) > 0
    with oracle(model, event, hidden=hidden), masked(model, inputs, left_out):
        theirs = model.generate(**inputs, **settings)
    assert difference(ours, theirs) <= TOLERANCE


def test_a_video_in_front_of_an_image():
    """Which the model encodes after it."""
    model, inputs = given("qwen2_vl", (40,))
    draw = torch.Generator().manual_seed(0)
    video = torch.randn(48, 96, generator=draw)
    video[4:8] = video[:4]  # of the first frame the second token
    front = [BEFORE_IMAGE, *[VIDEO] * 12, AFTER_IMAGE]
    ids = torch.cat([torch.tensor([front]), inputs["input_ids"]], dim=1)
    both = {
        **inputs,
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": (ids == zoo.IMAGE).int() + 2 * (ids == VIDEO).int(),
        "pixel_values_videos": video,
        "video_grid_thw": torch.tensor([[2, 4, 6]]),
    }
    with foveate.compress(model, f"{EXACT}+full") as session:
        dropped = hidden_of(session.prefill(**both))[0][0]
    assert dropped[ids[0] == VIDEO].nonzero().flatten().tolist() == [1]
    assert dropped[ids[0] == zoo.IMAGE].tolist() == tokens_left_out("qwen2_vl", inputs)


def test_a_second_reading_reads_what_was_encoded():
    model, inputs = given("qwen2_5_vl")
    check("qwen2_5_vl", foveate.policy(f"{EXACT}+kvzip:budget=60%"), model, inputs)


def test_features_that_a_caller_asks_for_are_those_of_all_patches():
    model, inputs = given("qwen3_vl", (40,))
    pixels = {name: inputs[name] for name in ("pixel_values", "image_grid_thw")}
    stock = model.get_image_features(**pixels).pooler_output
    with foveate.compress(model, f"{EXACT}+full") as session:
        session.prefill(**inputs)
        inside = model.get_image_features(**pixels).pooler_output
    assert all(torch.equal(a, b) for a, b in zip(stock, inside, strict=True))


@pytest.mark.parametrize("family", ["qwen2_vl", "llava"])
def test_pixels_that_were_read_elsewhere_are_refused(family):
    model, inputs = given(family, (40,))
    ids = inputs["input_ids"]
    vision = ids == zoo.IMAGE
    embeds = model.get_input_embeddings()(ids)
    with (
        foveate.compress(model, f"{EXACT}+full", vision=vision),
        pytest.raises(UnsupportedModel, match="pixels"),
    ):
        model(inputs_embeds=embeds, logits_to_keep=1)


def test_a_prompt_that_ends_with_a_patch_that_was_left_out_is_refused():
    model, inputs = given("qwen2_vl", (40,))
    last = int((inputs["input_ids"][0] == zoo.IMAGE).nonzero()[-1]) + 1
    inputs["pixel_values"] = torch.ones_like(inputs["pixel_values"])
    short = {
        k: v[:, :last] if v.shape[:1] == (1,) and v.ndim == 2 else v for k, v in inputs.items()
    }
    short["image_grid_thw"] = inputs["image_grid_thw"]
    with (
        foveate.compress(model, f"{EXACT}+full") as session,
        pytest.raises(InvalidInput, match="End the prompt with text"),
    ):
        session.prefill(**short)


def test_a_model_whose_tokens_are_made_of_all_patches_is_refused():
    with pytest.raises(UnsupportedModel, match="resampler"):
        foveate.compress(zoo.build("qwen_vl"), f"{EXACT}+full")
