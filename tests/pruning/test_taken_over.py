"""Tokens that take over others: the stock model given their states, where these stand."""

import pytest
import torch
from transformers import DynamicCache
from transformers.models.llava_next.modeling_llava_next import (
    get_anyres_image_grid_shape,
    unpad_image,
)

import foveate
from foveate.errors import UnsupportedModel
from foveate.hf.layer.support import text_config
from foveate.hf.model.decoder import find
from foveate.hf.model.internals import CACHE
from foveate.hf.pruning.tower import Tower
from foveate.methods.pruning import VisionZipPrune
from tests import zoo
from tests.conformance.compare import GREEDY, TOLERANCE, difference
from tests.conformance.oracle import event_of, oracle, tied_rows
from tests.pairs import by_turns, in_step
from tests.zoo.limits import beams_limit, before
from tests.zoo.vision_models import PINPOINTS

from .compare import BATCHES, check_pruned, given, hidden_of, in_chunks, taking_over
from .test_oracle import BEHIND, FAMILIES, embedded

LOOKED_AT = [
    "llava",
    "llava_next",
    "llava_onevision",
    "paligemma",
    "internvl",
    "idefics3",
    "smolvlm",
    "mobilevlm",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen3_vl_moe",
]
"""Whose image tower's attention is known."""
PACKED = ("llava_next", "llava_onevision")
IN_TURNS = {name: spec for name, spec in BEHIND.items() if name != "merged"}
"""The oracle merges once, and what is merged in a turn would merge again in the next."""
MERGED = "visionzip.prune(keep=60%,contextual=0.4)"
RECYCLED = {
    "inside": "sparsevlm.prune(at=1,keep=30%,to_one=2)",
    "twice": "sparsevlm.prune(at=1|2,keep=50%|20%)",
}


@by_turns(family=LOOKED_AT, behind=BEHIND, lengths=BATCHES)
def test_merged_tokens_equal_the_stock_model_given_these(family, behind, lengths):
    inputs = zoo.prompt(family, lengths=lengths)
    read = check_pruned(zoo.build(family), foveate.policy(f"{MERGED}+{behind}"), inputs)
    assert sum(len(rows) for rows, _, _ in read.rows[0]) >= len(lengths)


@by_turns(1, family=FAMILIES, cut=RECYCLED, behind=BEHIND, lengths=BATCHES)
def test_recycled_tokens_equal_the_stock_model_given_these(family, cut, behind, lengths):
    inputs = zoo.prompt(family, lengths=lengths)
    read = check_pruned(zoo.build(family), foveate.policy(f"{cut}+{behind}"), inputs)
    assert 1 in read.rows


@pytest.mark.parametrize("cut", [RECYCLED["inside"], "test_uneven.prune(at=l1)"])
def test_ends_of_lines_are_equally_near_to_those_around_them(cut):
    """LLaVA-OneVision's are alike before they are rotated: in the middle between two that are kept,
    which of them one merges into is a matter of rounding, in this batch; and other rows are exact.
    """
    family, lengths = "llava_onevision", BATCHES["left-padded"]
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=lengths)
    check_pruned(model, foveate.policy(f"{cut}+lookm:budget=60%"), inputs)
    assert bool(tied_rows(3).any()) or before("5.10.4")  # 5.4.0 draws other weights


@by_turns(2, family=LOOKED_AT, cut=[MERGED, RECYCLED["inside"]], behind=BEHIND)
def test_beams_and_several_images(family, cut, behind):
    if reason := beams_limit(images=2):
        pytest.skip(reason)
    inputs = zoo.prompt(family, lengths=(60, 70), images=2)
    check_pruned(zoo.build(family), foveate.policy(f"{cut}+{behind}"), inputs, num_beams=2)


@by_turns(
    3, family=["llava", "internvl", "mobilevlm"], cut=RECYCLED, behind=["full", "h2o:budget=60%"]
)
def test_chunks_in_which_tokens_are_recycled(family, cut, behind):
    """Of which one has no words at all."""
    model, inputs, vision = embedded(family)
    question = torch.randint(zoo.TEXT_FROM, zoo.VOCAB, (3, 4))
    mask = torch.cat([inputs["attention_mask"], torch.ones_like(question)], dim=1)
    pads = (inputs["attention_mask"] == 0).sum(-1)
    policy = foveate.policy(f"{cut}+{behind}")
    with (
        foveate.compress(model, policy, vision=vision) as session,
        taking_over(policy.prune, pads) as rows,
    ):
        cache = in_chunks(session, inputs, (20, 24, 33, 36, 40))
        event, hidden = event_of(cache), hidden_of(cache)
        ours = model(input_ids=question, attention_mask=mask, **{CACHE: cache}).logits
    stock = DynamicCache(config=model.config)
    with oracle(model, event, hidden=hidden):
        with given(model, rows):
            model(**inputs, **{CACHE: stock})
        theirs = model(input_ids=question, attention_mask=mask, **{CACHE: stock}).logits
    assert float((ours - theirs).abs().max()) <= TOLERANCE


@in_step(
    4,
    family=LOOKED_AT,
    cut={"merged": MERGED, **RECYCLED, "chosen while reading": "fastv.prune(layer=1,keep=40%)"},
    behind=IN_TURNS,
    lengths=BATCHES,
    saved={"held": False, "saved": True},
)
def test_a_context_and_a_later_turn_with_an_image_of_its_own(
    family, cut, behind, lengths, saved, tmp_path
):
    model, first = zoo.build(family), zoo.prompt(family, lengths=lengths)
    turn = zoo.extend(family, first, new_text=24, images=1).cached
    policy = foveate.policy(f"{cut}+{behind}")
    pads = (first["attention_mask"] == 0).sum(-1)
    with (
        foveate.compress(model, policy) as session,
        taking_over(policy.prune, pads) as rows,
    ):
        cache = session.prefill(**first)
        if saved:
            cache = session.load(session.save(tmp_path / "context.safetensors"))
        events = [event_of(cache)]
        session.rearm(cache)
        ours = model.generate(**turn, **{CACHE: cache}, **GREEDY)
        events.append(event_of(cache))
        hidden = hidden_of(cache)
    stock = DynamicCache(config=model.config)
    with oracle(model, *events, hidden=hidden), given(model, rows):
        model(**first, **{CACHE: stock})
        theirs = model.generate(**turn, **{CACHE: stock}, **GREEDY)
    assert difference(ours, theirs) <= TOLERANCE


@pytest.mark.parametrize("cut", [MERGED, RECYCLED["twice"]])
def test_states_that_are_not_given_are_missed(cut):
    """The oracle can fail: without these the stock model says something else."""
    model, inputs = zoo.build("llava"), zoo.prompt("llava", lengths=(40,))
    policy = foveate.policy(f"{cut}+full")
    read = check_pruned(model, policy, inputs)
    with foveate.compress(model, policy):
        ours = model.generate(**inputs, **GREEDY)
    with oracle(model, *read.events, hidden=read.hidden):
        theirs = model.generate(**inputs, **GREEDY)
    assert difference(ours, theirs) > 10 * TOLERANCE


# What the image tower is looked at for


@pytest.fixture
def looked(monkeypatch):
    """What a tower was asked, and what it said of the visual tokens of a pass."""
    found, own = [], Tower.of

    def noting(self, vision):
        calls = list(self._calls)
        made = made_of(self, calls)
        found.append((self, calls, made, vision, own(self, vision)))
        return found[-1][-1]

    monkeypatch.setattr(Tower, "of", noting)
    return found


def features(model, inputs, change=None):
    """What the decoder is given at the visual tokens; ``change`` is added to the output of the
    tower's layer that is looked at.
    """
    place = find(model, text_config(model))
    (layer,) = Tower(model, place, VisionZipPrune()).layers
    found, own = [], layer.forward

    def added(*args, **kwargs):
        output = own(*args, **kwargs)
        if change is None:
            return output
        if isinstance(output, tuple):
            return (output[0] + change.view_as(output[0]), *output[1:])
        return output + change.view_as(output)

    def note(module, args, kwargs):
        found.append(kwargs["inputs_embeds"])

    layer.forward = added
    hook = place.decoder.register_forward_pre_hook(note, with_kwargs=True)
    try:
        model(**inputs)
    finally:
        del layer.forward
        hook.remove()
    return found[0][inputs["input_ids"] == zoo.IMAGE]


@pytest.mark.parametrize("family", LOOKED_AT)
def test_tokens_are_made_of_the_patches_that_change_them(family, looked):
    """Which patches a token is of follows from the model itself, whatever is changed of them."""
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=(70,), images=2)
    with foveate.compress(model, f"{MERGED}+full") as session:
        session.prefill(**inputs)
    ((_, _, made, vision, _),) = looked
    assert len(made) == int(vision.sum())
    assert bool((made.sum(0) <= 1 + 1e-6).all())  # no patch makes two tokens
    before, draw = features(model, inputs), torch.Generator().manual_seed(1)
    of_patches = made.sum(1) > 0
    assert bool(of_patches.all()) == (family not in PACKED)
    for token in of_patches.nonzero()[1::5, 0].tolist():
        for patch in made[token].nonzero()[:, 0].tolist():
            moved = (features(model, inputs, change_of(made, patch, draw)) - before).abs().sum(-1)
            assert int(moved.argmax()) == token
            assert not bool(moved[~of_patches].any())


def made_of(tower, calls):
    """How much of each token, of all patches that the tower looked at, each patch is; classes are
    of none.
    """
    sizes = [one.q.shape[0] * one.q.shape[2] for one in calls]
    each = torch.eye(sum(sizes)).split(sizes)
    shown = [x.view(*one.q.shape[::2], -1) for x, one in zip(each, calls, strict=True)]
    return tower.tokens.joined([x[:, int(tower.by_class) :] for x in shown]).values


def change_of(made, patch, draw):
    change = torch.zeros(made.shape[1], 32)
    change[patch] = torch.randn(32, generator=draw)
    return change


def test_tiles_that_are_made_smaller_mix_their_patches(looked):
    """LLaVA-OneVision, where an image has more tokens than are allowed: bilinearly."""
    model, inputs = zoo.fresh("llava_onevision"), zoo.prompt("llava_onevision", lengths=(70,))
    model.config.vision_aspect_ratio = "anyres_max_1"
    ids = inputs["input_ids"]
    text = ids[ids != zoo.IMAGE]
    ids = torch.cat([text[:9], torch.full((4 + 3,), zoo.IMAGE), text[9:]])[None]
    inputs = {**inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with foveate.compress(model, f"{MERGED}+full") as session:
        session.prefill(**inputs)
    ((_, _, made, *_),), draw = looked, torch.Generator().manual_seed(1)
    assert int(((made > 0) & (made < 1)).sum()) > 1
    before = features(model, inputs)
    for patch in range(made.shape[1]):
        moved = (features(model, inputs, change_of(made, patch, draw)) - before).abs().sum(-1)
        share = moved / moved.max().clamp_min(1e-9)
        most = made[:, patch].max().clamp_min(1e-9)
        torch.testing.assert_close(share, made[:, patch] / most, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("family", ["llava", "paligemma", "internvl", "idefics3"])
def test_what_the_tower_paid_is_what_its_eager_attention_says(family, looked):
    model, inputs = zoo.fresh(family), zoo.prompt(family, lengths=(31, 40))
    model.config.vision_config._attn_implementation = "eager"
    place = find(model, text_config(model))
    (layer,) = Tower(model, place, VisionZipPrune()).layers
    weights = []
    for name, part in layer.named_modules():
        if name.endswith("attn") or name == "attention":
            part.register_forward_hook(lambda module, args, output: weights.append(output[1]))
    with foveate.compress(model, f"{MERGED}+full") as session:
        session.prefill(**inputs)
    ((*_, vision, seen),) = looked
    by_class = family in ("llava", "internvl")
    paid = weights[0].mean(1)  # image, query, patch
    paid = paid[:, 0, 1:] if by_class else paid.mean(1)
    side, each = int(paid.shape[1] ** 0.5), paid.shape[1] // 9
    cell = int(each**0.5)
    squares = paid.view(-1, side // cell, cell, side // cell, cell).mean((2, 4))
    torch.testing.assert_close(seen.paid[vision], squares.flatten(), atol=1e-6, rtol=1e-5)


def test_the_keys_of_the_tower_are_the_mean_over_its_heads(looked):
    model, inputs = zoo.fresh("llava"), zoo.prompt("llava", lengths=(31, 40))
    (layer,) = Tower(model, find(model, text_config(model)), VisionZipPrune()).layers
    made = []
    layer.self_attn.k_proj.register_forward_hook(lambda m, args, output: made.append(output))
    with foveate.compress(model, f"{MERGED}+full") as session:
        session.prefill(**inputs)
    ((*_, vision, seen),) = looked
    heads = made[0][:, 1:].unflatten(-1, (layer.self_attn.num_heads, -1))
    torch.testing.assert_close(seen.keys[vision], heads.mean(2).flatten(0, 1))


@pytest.mark.parametrize("family", ["llava_next", "llava_onevision"])
def test_what_the_tiles_of_an_image_are_paid_stands_where_the_model_packs_them(family, looked):
    """Overview first, then the tiles as one picture without its padding, a line's end each line."""
    model, inputs = zoo.fresh(family), zoo.prompt(family, lengths=(70,), images=2)
    model.config.vision_config._attn_implementation = "eager"
    (layer,) = Tower(model, find(model, text_config(model)), VisionZipPrune()).layers
    weights = []
    layer.self_attn.register_forward_hook(lambda module, args, output: weights.append(output[1]))
    with foveate.compress(model, f"{MERGED}+full") as session:
        session.prefill(**inputs)
    ((*_, vision, seen),) = looked
    paid = weights[0].mean(1)
    paid = paid[:, 0, 1:] if family == "llava_next" else paid.mean(1)
    expected, first = [], 0
    for size in inputs["image_sizes"].tolist():
        rows, columns = get_anyres_image_grid_shape(size, PINPOINTS, 8)
        tiles = paid[first + 1 : first + 1 + rows * columns].view(rows, columns, 2, 2)
        picture = unpad_image(tiles.transpose(1, 2).reshape(1, 2 * rows, 2 * columns), size)[0]
        ends = torch.full((len(picture), 1), -torch.inf)
        expected += [paid[first], torch.cat([picture, ends], 1).flatten()]
        first += 1 + rows * columns
    torch.testing.assert_close(seen.paid[vision], torch.cat(expected), atol=1e-6, rtol=1e-5)


def test_towers_of_which_no_token_has_patches_of_its_own():
    with pytest.raises(UnsupportedModel, match="how patches become tokens"):
        foveate.compress(zoo.build("qwen_vl"), f"{MERGED}+full")


def test_a_tower_whose_last_layer_looks_within_windows():
    model = zoo.fresh("qwen2_5_vl")
    model.config.vision_config.fullatt_block_indexes = [0]
    with pytest.raises(UnsupportedModel, match="within windows"):
        foveate.compress(model, f"{MERGED}+full")


def test_a_pass_whose_images_the_tower_has_not_seen():
    model, inputs = zoo.build("llava"), zoo.prompt("llava")
    embeds = model.get_input_embeddings()(inputs["input_ids"])
    vision = inputs["input_ids"] == zoo.IMAGE
    with (
        foveate.compress(model, f"{MERGED}+full", vision=vision) as session,
        pytest.raises(UnsupportedModel, match="images of 0 visual tokens"),
    ):
        session.prefill(inputs_embeds=embeds)
    policy = foveate.policy("visionzip.prune(keep=60%)+full")
    with foveate.compress(model, policy) as session:  # and goes on
        session.prefill(**inputs)
