"""Prompts that are read once for many policies, and pictures of them, where tokens were dropped."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import foveate
from foveate.errors import InvalidInput
from foveate.hf import branch, compress, record
from foveate.hf.model.internals import CACHE
from foveate.models.token_grids import Grid, ImageTokens
from foveate.pictures import kept_picture
from foveate.pictures.lens.choices import Readings, seen
from tests import zoo
from tests.conformance.compare import TOLERANCE
from tests.pairs import in_step

from .compare import BATCHES
from .test_oracle import CUTS

AFTER = ["full", "snapkv:budget=60%,window=4", "h2o:budget=60%", "kvzip:budget=60%"]


@in_step(family=["llava", "qwen2_vl", "qwen3_vl", "internvl"], cut=CUTS, behind=AFTER)
def test_a_branch_is_what_a_block_of_its_own_holds(family, cut, behind):
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=(40,))
    policy = foveate.policy(f"{cut}+{behind}")
    with compress(model, policy) as session:
        own = session.prefill(**inputs)
        kept = [layer.pairs.columns for layer in own.layers]
        question = zoo.extend(family, inputs, new_text=3, seed=1).cached
        ours = model(**question, **{CACHE: own}).logits
    recording = record(model, sums=policy.reads_column_sums, prune=policy.prune, **inputs)
    with compress(model, policy) as session:
        cache = branch(session, recording)
        assert float(session.stats.computed.mean()) < 1
        for layer, columns in zip(cache.layers, kept, strict=True):
            assert torch.equal(layer.pairs.columns, columns)
        theirs = model(**question, **{CACHE: cache}).logits
    assert float((ours - theirs).abs().max()) <= TOLERANCE


@pytest.mark.parametrize("prune", [None, "random.prune(keep=60%)+full"])
def test_a_recording_of_other_tokens_than_the_policy_computes(prune):
    model, inputs = zoo.build("llava"), zoo.prompt("llava", lengths=(40,))
    stage = None if prune is None else foveate.policy(prune).prune
    recording = record(model, prune=stage, **inputs)
    with (
        compress(model, "random.prune(keep=40%)+snapkv:budget=20%,window=4") as session,
        pytest.raises(InvalidInput, match=r"record\(\.\.\., prune=policy\.prune\)"),
    ):
        branch(session, recording)


def test_the_lens_shows_what_was_kept_of_what_was_computed():
    model, inputs = zoo.build("llava"), zoo.prompt("llava", lengths=(40,))
    policy = foveate.policy(f"{CUTS['between']}+snapkv:budget=40%,window=4")
    with compress(model, policy) as session:
        session.prefill(**inputs)
        held, computed = session.held_share(), session.computed_share()
    whole = replace(policy, prune=None, origin=None)
    (dropping,), (keeping,) = seen(Readings(model, inputs), [[policy], [whole]]).choices
    assert torch.equal(dropping.kept.float().mean(0, keepdim=True), held)
    layers = dropping.kept.view(3, 2, 40)
    never = (computed[0] < 1).nonzero()[:, 0]
    assert len(never)
    assert not bool(layers[1:, :, never].any())
    assert bool(dropping.scores.view(3, 2, 40)[1:, :, never].isnan().all())
    assert not torch.equal(keeping.kept, dropping.kept)
    assert torch.equal(dropping.computed.view(3, 2, 40).float().mean((0, 1)), computed[0])
    assert keeping.computed is None


@in_step(1, family=["llava", "qwen2_vl"], cut=CUTS, behind=AFTER, lengths=BATCHES)
def test_every_token_was_kept_evicted_or_not_computed(family, cut, behind, lengths):
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=lengths)
    with compress(model, f"{cut}+{behind}") as session:
        session.prefill(**inputs)
        held = (session.held_share() * inputs["attention_mask"]).sum(-1)
        stats = session.stats
    kept = torch.stack([layer.kept for layer in stats.layers]).float().mean((0, 2))
    assert torch.allclose(kept, held)
    for layer in stats.layers:
        dropped = torch.zeros(len(lengths), 1) if layer.dropped is None else layer.dropped[:, None]
        whole = layer.kept + layer.evicted + dropped
        assert torch.equal(whole, torch.tensor(lengths)[:, None].expand_as(whole).to(whole))
        assert bool((layer.evicted >= 0).all())
        if behind == "full":
            assert not bool(layer.evicted.any())
        said = f"evicted {layer.evicted.tolist()}, not computed {dropped[:, 0].tolist()}"
        assert (said in str(stats)) == (layer.dropped is not None)


def test_patches_that_were_dropped_are_crossed_on_the_picture():
    image, grid = Image.new("RGB", (200, 100), "white"), Grid(1, 2, (0, 1))
    found = [ImageTokens((0, 1), (grid,))]
    rows = [("one", "", torch.ones(2))]

    def drawn(*whole):
        return np.asarray(kept_picture([image], found, rows, computed=list(whole) or None)).astype(
            int
        )

    plain = drawn()
    assert np.array_equal(plain, drawn(torch.tensor([True, True])))
    crossed = drawn(torch.tensor([True, False]))
    changed = np.argwhere((crossed[: len(plain)] != plain).any(-1))
    assert len(changed)
    first = changed[changed[:, 0] < changed[:, 0].min() + 60]
    middle = 22 + (np.argwhere((plain == 255).all(-1))[:, 1].max() - 22) / 4
    assert first[:, 1].min() > middle
