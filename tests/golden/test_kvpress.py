"""Scores and kept tokens beside those of NVIDIA kvpress 0.5.5, which ``record_kvpress.py`` wrote.

Protected tokens have infinite scores in ours; in kvpress their scores are above all others.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from safetensors.torch import save_file
from torch.testing import assert_close

import foveate
from foveate.backends.hf.attention.by_products import ModelAttention
from foveate.backends.hf.cache_layer import FoveateLayer
from foveate.backends.hf.state import CacheState, Link
from foveate.core.profile import SCHEMA, Profile
from foveate.errors import FoveateError

from .kvpress_rows import ELSEWHERE, PENDING, ROWS, UNMATCHED, Row, pending
from .vectors import DATA, load

READY = [row for row in ROWS if not pending(row.spec)]


def kept_by(row: Row) -> list[foveate.Kept]:
    given, _ = load(f"kvpress_{row.inputs}")
    layers = [
        (q[None], k[None], v[None])
        for q, k, v in zip(given["q"], given[row.k], given["v"], strict=True)
    ]
    more = {}
    if row.projected:  # [hidden, heads * size] to [heads, size, hidden]
        heads, size = given["q"].shape[1], given["v"].shape[3]
        more = {"output_weights": [o.T.reshape(heads, size, -1) for o in given["o_proj"]]}
    with TemporaryDirectory() as folder:
        policy = foveate.policy(row.spec.format(profile=written(row, folder)))
        return foveate.compress_tensors(policy, layers, **more)


def written(row: Row, folder: str) -> str:
    """What was recorded of the heads, as a profile of ours."""
    about = {"method": row.spec.split(":")[0], "model": "", "samples": 1, "budget": ""}
    path = Path(folder) / "profile"
    if row.profile == "heads":
        scores = load(f"kvpress_{row.press}")[0]["heads"].tolist()
        Profile(layers=len(scores), by_layer=scores, **about).save(path)
    if row.profile == "filters":  # which kvpress has with the opposite sign
        filters = load(f"kvpress_{row.press}")[0]["filters"]
        note = {key: str(value) for key, value in about.items()}
        note |= {"schema": SCHEMA, "layers": str(len(filters))}
        save_file({f"filters.{i}": -one for i, one in enumerate(filters)}, path, note)
    return str(path)


@pytest.mark.parametrize("row", [row for row in READY if row.scores], ids=str)
def test_scores_are_those_of_kvpress(row):
    theirs = load(f"kvpress_{row.press}")[0]["scores"]
    for ours, scores in zip(kept_by(row), theirs, strict=True):
        free, turned = ours.scores[0].isfinite(), row.scores(scores)
        both = free & turned.isfinite()
        assert_close(ours.scores[0][both], turned[both], rtol=1e-4, atol=row.tolerance)
        assert int(both.sum()) > both.numel() // 2
        for head in (~free).any(-1).nonzero()[:, 0]:
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
    assert sum(int(one.counts.sum()) for one in ours) == 24 * theirs[..., 0].numel()


def test_every_recording_is_compared():
    recorded = {path.stem.removeprefix("kvpress_") for path in DATA.glob("kvpress_*.safetensors")}
    presses = recorded - {"inputs", "inputs_unrotated", "answers"}
    assert presses == {row.press for row in ROWS} | set(ELSEWHERE) | UNMATCHED
    assert set(ELSEWHERE.values()) <= set(globals())


@pytest.mark.parametrize("row", [row for row in ROWS if pending(row.spec)], ids=str)
def test_pending_specs_cannot_be_read_yet(row):
    with pytest.raises(FoveateError, match=r"no method named|no stage named|no parameter"):
        foveate.policy(row.spec)


def test_nothing_that_exists_is_pending():
    assert not {name for name in PENDING if name in foveate.METHODS}


def fed(policy, k, v, passes, prompt):
    """What a cache layer holds in the end, [h, n], if pairs arrive in passes of these sizes."""
    state = CacheState(policy, Link(), 1)
    state.prompt_end = prompt
    layer, first = FoveateLayer(state, 0, 0), 0

    def nothing(q, k, v, mask):
        return q.transpose(1, 2), None

    for size in passes:
        some = slice(first, first + size)
        layer.update(k[None, :, some], v[None, :, some])
        layer.attend(ModelAttention(plain=nothing, masked=nothing), k[None, :, some], None, 1.0)
        first += size
    held = torch.zeros(k.shape[:2], dtype=torch.bool)
    return held.scatter(1, layer.pairs.columns[0], True)


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
