"""Tokens that take over others: the stock model given their states, where these stand."""

import pytest
import torch
from transformers import DynamicCache

import foveate
from foveate.backends.hf.decoder import find
from foveate.backends.hf.internals import CACHE
from foveate.backends.hf.support import text_config
from foveate.backends.hf.tower import Tower
from foveate.errors import UnsupportedModel
from foveate.methods.pruning import VisionZipPrune
from tests import zoo
from tests.conformance.compare import GREEDY, TOLERANCE, difference
from tests.conformance.oracle import event_of, oracle
from tests.pairs import by_turns

from .compare import BATCHES, check_pruned, given, hidden_of, in_chunks, taking_over
from .test_oracle import BEHIND, FAMILIES, embedded

LOOKED_AT = [
    "llava",
    "paligemma",
    "internvl",
    "idefics3",
    "smolvlm",
    "mobilevlm",
    "qwen2_vl",
    "qwen3_vl",
    "qwen3_vl_moe",
]
"""Whose image tower's attention is known."""
UNMERGED = {name: spec for name, spec in BEHIND.items() if name != "merged"}
"""LLaVA-OneVision's line ends are alike: which of them is nearest may be a matter of rounding."""
MERGED = "visionzip.prune(keep=60%,contextual=0.4)"
RECYCLED = {
    "inside": "sparsevlm.prune(at=1,keep=30%,to_one=2)",
    "twice": "sparsevlm.prune(at=1|2,keep=50%|20%)",
}


@by_turns(rounds=2, family=LOOKED_AT, behind=BEHIND, lengths=BATCHES)
def test_merged_tokens_equal_the_stock_model_given_these(family, behind, lengths):
    inputs = zoo.prompt(family, lengths=lengths)
    read = check_pruned(zoo.build(family), foveate.policy(f"{MERGED}+{behind}"), inputs)
    assert sum(len(rows) for rows, _, _ in read.rows[0]) >= len(lengths)


@by_turns(1, rounds=2, family=FAMILIES, cut=RECYCLED, behind=UNMERGED, lengths=BATCHES)
def test_recycled_tokens_equal_the_stock_model_given_these(family, cut, behind, lengths):
    inputs = zoo.prompt(family, lengths=lengths)
    read = check_pruned(zoo.build(family), foveate.policy(f"{cut}+{behind}"), inputs)
    assert 1 in read.rows


@by_turns(2, family=LOOKED_AT, cut=[MERGED, RECYCLED["inside"]], behind=BEHIND)
def test_beams_and_several_images(family, cut, behind):
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
        found.append((self, calls, vision, own(self, vision)))
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
    ((tower, calls, vision, _),) = looked
    made = [tower.patches(one) for one in calls]
    starts = [sum(one.q.shape[0] * one.q.shape[2] for one in calls[:i]) for i in range(len(calls))]
    made = torch.cat([of + start for of, start in zip(made, starts, strict=True)])
    assert len(made) == int(vision.sum())
    assert len(made.unique()) == made.numel()
    wide = calls[0].q.shape[1] * calls[0].q.shape[3]
    whole = sum(one.q.shape[0] * one.q.shape[2] for one in calls)
    before, draw = features(model, inputs), torch.Generator().manual_seed(1)
    for token in range(1, len(made), 5):
        for patch in made[token].tolist():
            change = torch.zeros(whole, wide)
            change[patch] = torch.randn(wide, generator=draw)
            moved = (features(model, inputs, change) - before).abs().sum(-1)
            assert int(moved.argmax()) == token


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


@pytest.mark.parametrize("family", ["llava_next", "qwen2_5_vl", "qwen_vl"])
def test_towers_whose_patches_become_tokens_in_another_way(family):
    with pytest.raises(UnsupportedModel, match="how patches become tokens"):
        foveate.compress(zoo.build(family), f"{MERGED}+full")


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
