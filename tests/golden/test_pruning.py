"""Which visual tokens go on, and as what, is what the authors' code said of the same inputs; each
choice by itself, as their code numbers positions anew where ours keeps them.
"""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from foveate.cache.layer import Layer
from foveate.cache.slots import Slots
from foveate.policies.pruning import EnteringTokens, TowerAttention
from foveate.policies.spec import make_stage

from .given import layer_of
from .vectors import load


def entering(length, visual, layer, hidden=None, **more):
    """One row, with an image from place ``visual[0]`` to ``visual[1]``."""
    pos = torch.arange(length)[None]
    image = torch.where((pos >= visual[0]) & (pos < visual[1]), 0, -1)
    return EnteringTokens(
        layer=layer,
        depth=32,
        hidden=torch.zeros(1, length, 1) if hidden is None else hidden[None],
        pos=pos,
        image=image,
        spot=torch.where(image >= 0, pos - visual[0], -1),
        visual_tokens=(image >= 0).sum(-1),
        **more,
    )


def going_on(chosen, tokens):
    """The places that go on, text among them."""
    return (chosen.goes_on | ~tokens.vision)[0].nonzero()[:, 0].tolist()


@pytest.mark.parametrize("case", range(3))
def test_fastv_in_place(case):
    data, args = load("fastv")
    given = args["cases"][case]
    end = given["sys"] + given["img"]
    before = layer_of(data[f"attention{case}"], heads=len(data[f"attention{case}"]))
    tokens = entering(end + given["post"], (given["sys"], end), given["agg_layer"], before=before)
    stage = make_stage(
        "fastv_prune",
        {"layer": given["agg_layer"], "keep": (given["attention_rank"] + 0.5) / given["img"]},
    )
    assert going_on(stage(tokens), tokens) == data[f"kept{case}"].tolist()
    assert data[f"positions{case}"].tolist() == data[f"kept{case}"].tolist()  # as here


def test_pyramiddrop_by_the_attention_that_the_release_works_out_anew():
    data, args = load("pyramiddrop")
    pre, img = args["pre"], args["img"]
    stage = make_stage("pyramiddrop_prune", {"stages": 3})
    for drop in (1, 2):
        held = data[f"kept{drop - 1}"]
        q, k = data[f"q{drop}"][:, :, held], data[f"k{drop}"][:, :, held]
        pos = torch.arange(len(held))[None]  # its places, without rotation
        slots = Slots(pos=pos[:, None].expand(1, k.shape[1], -1), q_pos=pos)
        before = Layer(q=q, k=k, v=k, slots=slots, scale=q.shape[-1] ** -0.5)
        visual = (pre, pre + int(img * args["image_token_ratio_list"][drop - 1]))
        tokens = entering(len(held), visual, stage.layers(32)[drop - 1], before=before)
        tokens = type(tokens)(**{**vars(tokens), "visual_tokens": torch.tensor([img])})
        kept = held[going_on(stage(tokens), tokens)]
        assert kept.tolist() == data[f"kept{drop}"].tolist()


@pytest.mark.parametrize("case", range(3))
def test_visionzip_given_what_its_tower_says(case):
    data, args = load("visionzip")
    given = args["cases"][case]
    dominant, merged, patches = given["dominant"], given["contextual"], given["patches"]
    attention, hidden = data[f"attention{case}"], data[f"hidden{case}"][1:]
    tower = TowerAttention(attention.mean(0)[None, 0, 1:], data[f"metric{case}"][None, 1:])
    tokens = entering(patches, (0, patches), 0, hidden, tower=tower)
    count = dominant + merged
    stage = make_stage(
        "visionzip_prune",
        {"keep": (count + 0.5) / patches, "contextual": (merged + 0.5) / count},
    )
    chosen = stage(tokens)
    kept = sorted((data[f"indices{case}"][1:] - 1).tolist())  # less the class token
    rest = [j for j in range(patches) if j not in kept]
    targets = [rest[i * (len(rest) // merged)] for i in range(merged)]
    assert going_on(chosen, tokens) == sorted([*kept, *targets])
    rows = data[f"rows{case}"][1:]
    assert_close(chosen.hidden[0, kept], rows[:dominant])
    assert_close(chosen.hidden[0, targets], rows[dominant:], atol=1e-5, rtol=1e-5)


def test_sparsevlm_from_embeddings_to_what_each_layer_is_given():
    """Its recycled tokens stand behind the chosen ones; here each at its cluster's centre."""
    data, args = load("sparsevlm")
    pre, img, post = args["pre"], args["img"], args["post"]
    shares = "|".join(f"{100 * (count + 0.5) / img:.4f}%" for count in args["keep"])
    stage = make_stage("sparsevlm_prune", {"keep": shares})
    first = entering(pre + img + post, (pre, pre + img), 0, data["embeds0"])
    raters, visual = stage(first).notes["raters"][0, -post:], img
    for number, layer in enumerate(stage.layers(32)[1:]):
        attention, states = data[f"attention0_{number}"], data[f"states0_{number}"]
        length = pre + visual + post
        notes = torch.cat([torch.zeros(length - post, dtype=torch.bool), raters])
        before = layer_of(attention, heads=len(attention))
        tokens = entering(
            length,
            (pre, pre + visual),
            layer,
            states,
            before=before,
            notes={"raters": notes[None]},
        )
        tokens = type(tokens)(**{**vars(tokens), "visual_tokens": torch.tensor([img])})
        chosen = stage(tokens)
        goes_on = going_on(chosen, tokens)
        found, expected = chosen.hidden[0, goes_on], data[f"next0_{number}"]
        kept = args["keep"][number]
        own = [i for i, at in enumerate(goes_on) if bool((states[at] == found[i]).all())]
        recycled = [i for i in range(len(goes_on)) if i not in own]
        visual = len(goes_on) - pre - post
        assert len(recycled) == visual - kept
        order = [i for i in own if i < pre + visual]
        assert_close(found[order], expected[: pre + kept])
        assert_close(found[-post:], expected[-post:])
        means = expected[pre + kept : pre + visual]
        nearest = torch.cdist(found[recycled].double(), means.double()).argmin(-1)
        assert sorted(nearest.tolist()) == list(range(len(means)))
        assert_close(found[recycled], means[nearest], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", range(6))
def test_pixelprune_of_screens_with_and_without_noise(case):
    data, args = load("pixelprune")
    given, pixels = args["cases"][case], data[f"pixels{case}"]
    distance = given["metric"].replace("exact", "max")
    stage = make_stage("pixelprune_prune", {"tolerance": given["threshold"], "distance": distance})
    repeated = stage.repeated(pixels).flatten()
    assert (~repeated).nonzero()[:, 0].tolist() == data[f"kept{case}"].tolist()


def video(embeds, frames):
    """A pass of frames alone, whose tokens have these embeddings."""
    tokens = entering(len(embeds), (0, len(embeds)), 0, embeds)
    size = len(embeds) // frames
    image, spot = tokens.pos // size, tokens.pos % size
    return type(tokens)(**{**vars(tokens), "image": image, "spot": spot})


@pytest.mark.parametrize("case", range(3))
def test_evs_of_videos_whose_parts_move(case):
    data, args = load("evs")
    given, embeds = args["cases"][case], data[f"embeds{case}"]
    keep = (int(len(embeds) * (1 - given["q"])) + 0.5) / len(embeds)
    chosen = make_stage("evs_prune", {"keep": keep})(video(embeds, given["frames"]))
    assert chosen.goes_on[0].tolist() == data[f"kept{case}"].tolist()


@pytest.mark.parametrize("case", range(4))
def test_vidcom2_of_videos_one_of_whose_frames_stands_out(case):
    data, args = load("vidcom2")
    given, embeds = args["cases"][case], data[f"embeds{case}"]
    stage = make_stage("vidcom2_prune", {"keep": given["base_scale"]})
    chosen = stage(video(embeds, given["frames"]))
    assert chosen.goes_on[0].nonzero()[:, 0].tolist() == data[f"kept{case}"].tolist()
