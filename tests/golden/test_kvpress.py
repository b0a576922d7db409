"""Scores and kept tokens beside those of NVIDIA kvpress 0.5.5, which ``record_kvpress.py`` wrote.

Protected tokens have infinite scores in ours; in kvpress their scores are above all others.
"""

from __future__ import annotations

from dataclasses import replace
from tempfile import TemporaryDirectory

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import foveate
from foveate.cache.slots import Slots
from foveate.compression.pipeline import score
from foveate.compression.tensors import layers_of
from foveate.errors import FoveateError
from foveate.hf.attention.by_products import ModelAttention
from foveate.hf.layer.cache_layer import FoveateLayer
from foveate.hf.layer.phases import attend
from foveate.hf.layer.state import CacheState, Link
from foveate.policies.spec import STAGES
from foveate.stages.score import Reconstruction

from .kvpress_profiles import written
from .kvpress_rows import ELSEWHERE, PENDING, ROWS, UNMATCHED, Row, pending
from .vectors import DATA, load, papers

THINK = "think:budget=60,window=8"
READY = [row for row in ROWS if not pending(row.spec)]


def layers_in(given: dict[str, Tensor], k: str = "k") -> list[tuple[Tensor, Tensor, Tensor]]:
    return [
        (q[None], k[None], v[None])
        for q, k, v in zip(*(given[x] for x in ("q", k, "v")), strict=True)
    ]


def kept_by(row: Row) -> list[foveate.Kept]:
    given, _ = load(f"kvpress_{row.inputs}")
    more = {}
    if row.projected:  # [hidden, heads * size] to [heads, size, hidden]
        heads, size = given["q"].shape[1], given["v"].shape[3]
        more = {"output_weights": [o.T.reshape(heads, size, -1) for o in given["o_proj"]]}
    with TemporaryDirectory() as folder:
        policy = foveate.policy(row.spec.format(profile=written(row, folder)))
        return foveate.compress_tensors(policy, layers_in(given, row.k), **more)


@pytest.mark.parametrize("row", [row for row in READY if row.scores], ids=str)
def test_scores_are_those_of_kvpress(row):
    theirs = load(f"kvpress_{row.press}")[0]["scores"]
    for ours, scores in zip(kept_by(row), theirs, strict=True):
        free, turned = ours.scores[0].isfinite(), row.scores(scores)
        both = free & turned.isfinite()
        assert_close(ours.scores[0][both], turned[both], rtol=1e-4, atol=row.tolerance)
        assert int(both.sum()) > both.numel() // 2
        for head in (~free).any(-1).nonzero()[:, 0] if row.marked else ():
            assert scores[head][~free[head]].min() >= scores[head][free[head]].max()


@pytest.mark.parametrize("row", [row for row in READY if not row.departs], ids=str)
def test_the_same_tokens_are_kept(row):
    theirs = load(f"kvpress_{row.press}")[0]["kept"]
    for ours, kept in zip(kept_by(row), theirs, strict=True):
        assert torch.equal(ours.mask.sum(-1)[0], kept.sum(-1))
        border = ours.scores[0].masked_fill(~ours.mask[0], torch.inf).amin(-1, keepdim=True)
        at_border = (ours.scores[0] - border).abs() <= row.border
        assert not bool(((ours.mask[0] ^ kept) & ~at_border).any())


@pytest.mark.parametrize("row", [row for row in READY if row.departs], ids=str)
def test_what_departs_does_so_and_keeps_exactly_its_budget(row):
    theirs, ours = load(f"kvpress_{row.press}")[0]["kept"], kept_by(row)
    assert any(not torch.equal(one.mask[0], kept) for one, kept in zip(ours, theirs, strict=True))
    tokens = foveate.policy(row.spec).amount.tokens(torch.tensor([theirs.shape[-1]]), 0)
    assert sum(int(one.counts.sum()) for one in ours) == int(tokens) * theirs[..., 0].numel()


def test_every_recording_is_compared():
    names = [path.stem for path in DATA.glob("kvpress_*.safetensors")]
    ours = {name.removeprefix("kvpress_") for name in names if "version" in papers(name)[1]}
    presses = ours - {"inputs", "inputs_unrotated", "answers"}
    assert presses == {row.press for row in ROWS} | set(ELSEWHERE) | UNMATCHED
    assert set(ELSEWHERE.values()) <= set(globals())


def test_pending_specs_cannot_be_read_yet():
    for spec in [*(row.spec for row in ROWS), THINK]:
        if pending(spec):
            with pytest.raises(FoveateError, match=r"no method named|no stage named|no parameter"):
                foveate.policy(spec)


def test_nothing_that_exists_is_pending():
    parameters = {name for method in foveate.METHODS.values() for name in method.parameters}
    assert not PENDING & ({*foveate.METHODS, *STAGES} | parameters)


def fed(policy, k, v, passes, prompt):
    """What a cache layer holds in the end, [h, n], if pairs arrive in passes of these sizes."""
    state = CacheState(policy, Link(), 1)
    state.arm(prompt)
    layer, first = FoveateLayer(state, 0, 0), 0

    def nothing(q, k, v, mask):
        return q.transpose(1, 2), None

    for size in passes:
        some = slice(first, first + size)
        layer.update(k[None, :, some], v[None, :, some])
        attend(layer, ModelAttention(plain=nothing, masked=nothing), k[None, :, some], None, 1.0)
        first += size
    held = torch.zeros(k.shape[0], first + 1, dtype=torch.bool)
    return held.scatter(1, layer.pairs.columns[0] % (first + 1), True)[:, :first]  # -1: no pair


def test_blocks_are_a_prompt_read_in_chunks():
    given, theirs = load("kvpress_inputs")[0], load("kvpress_block")[0]["kept"]
    policy = foveate.policy("keydiff:budget=24,when=over_budget(every=8,reading=true)")
    for k, v, kept in zip(given["k"], given["v"], theirs, strict=True):
        assert torch.equal(fed(policy, k, v, [8] * 7 + [5], 61), kept)


def test_decoding_keeps_to_its_size():
    given, _ = load("kvpress_decoding")
    policy = foveate.policy("knorm:budget=24,when=over_budget(every=4)")
    for k, v, kept in zip(given["k"], given["v"], given["kept"], strict=True):
        assert torch.equal(fed(policy, k, v, [24] + [1] * 37, 24), kept)


def test_a_threshold_goes_on_while_decoding():
    """Of the prompt and of the answer some leave."""
    given, _ = load("kvpress_dms_decoding")
    policy = foveate.policy("knorm:recent=8,budget=above_threshold(threshold=-4),when=over_budget")
    for k, v, kept in zip(given["k"], given["v"], given["kept"], strict=True):
        assert torch.equal(fed(policy, k, v, [24] + [1] * 37, 24), kept)
        assert bool((kept[:, :24].sum(-1) < 24).any())
        assert bool((kept[:, 24:].sum(-1) < 37).any())


def test_think_drops_the_channels_that_kvpress_drops():
    """Ours goes by the keys that are kept, and leaves the window's channels."""
    if pending(THINK):
        return  # the test of pending specs has it
    policy, channels = foveate.policy(THINK), load("kvpress_think")[0]["channels"]
    for layer, theirs in zip(
        layers_of(layers_in(load("kvpress_inputs")[0])), channels, strict=True
    ):
        slots = layer.slots.with_budget(torch.tensor([60]))
        scored = score(policy, replace(layer, slots=slots))
        k, v = policy.merge(scored, layer.valid)
        assert torch.equal(k[0, :, :-8].ne(0), theirs[:, None].expand_as(k[0, :, :-8]))
        assert torch.equal(k[:, :, -8:], layer.k[:, :, -8:])
        assert torch.equal(v, layer.v)


@pytest.mark.parametrize(("press", "by"), [("kvzip", "attention"), ("kvzip_plus", "contribution")])
def test_a_second_reading_counts_as_in_kvpress(press, by):
    """Their replay, fed to our score; theirs marks its four sinks. In chunks theirs attends to one
    part of the prompt at a time, and ours to all of it.
    """
    given, (theirs, _) = load("kvpress_inputs")[0], load(f"kvpress_{press}")
    (tokens, size), score = given["k"].shape[2:], Reconstruction(by=by)
    for layer, expected in zip(layers_of(layers_in(given)), theirs["scores"], strict=True):
        q, k, v = (theirs[f"replay0_{x}"][layer.ordinal][None] for x in "qkv")
        pos = torch.arange(tokens + q.shape[2])
        slots = Slots(pos=pos.expand(1, 2, -1), q_pos=pos[None, tokens:])
        k, v = torch.cat([layer.k, k], 2), torch.cat([layer.v, v], 2)
        weight = given["o_proj"][layer.ordinal].T.reshape(layer.q.shape[1], size, -1)
        norm = theirs["replay0_norm"][layer.ordinal][None]
        layer = replace(layer, q=q, k=k, v=v, slots=slots)
        state = score.again(replace(layer, output_weight=weight, residual_norm=norm))
        assert_close(state["reconstruction"][0, :, 4:], expected[:, 4:])
