"""A budget that is divided holds its bytes, and is the policy with the shares written out."""

import pytest
import torch

import foveate
from foveate.errors import CacheMismatch, InvalidBudget, InvalidParameter, UnsupportedModel
from foveate.hf import branch, compress, record
from foveate.hf.attach.model_policy import divided_for
from foveate.hf.model.internals import CACHE
from tests import zoo
from tests.pairs import by_turns

from .compare import BATCHES, in_chunks
from .test_oracle import embedded

ALL = "fastv.prune(layer=1,keep=auto)+snapkv+kivi(bits=auto,residual=4,group=4):budget=20%,window=4"
SPECS = {
    "all three": ALL,
    "before the first layer, ragged": (
        "divprune.prune(keep=auto)+adakv+kivi(bits=auto,residual=0,group=4):budget=25%,window=4"
    ),
    "tokens and pairs": "random.prune(keep=auto)+vl_cache:budget=30%",
    "bits and pairs, read again": "kvzip+kivi(bits=auto,residual=4,group=4):budget=15%",
    "some bits are given": "fastv.prune(layer=1,keep=auto)+h2o+kivi(bits=8,residual=2):budget=20%",
    "bytes": "fastv.prune(layer=1,keep=auto)+knorm+kivi(bits=auto,residual=2):budget=16KB",
}


def held(session, cache):
    """All that a cache holds, bit for bit."""
    return [t for layer in cache.layers for t in (layer.keys, layer.values, layer.pairs.columns)]


def same(some, others):
    return all(map(torch.equal, some, others))


@by_turns(rounds=2, spec=SPECS, lengths=BATCHES, family=["llava", "qwen2_vl"])
def test_bytes_are_held_and_answers_are_those_of_the_shares_written_out(spec, lengths, family):
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=lengths)
    policy = foveate.policy(spec)
    with compress(model, policy) as session:
        ours, stats = held(session, session.prefill(**inputs)), session.stats
    made = foveate.policy(stats.policy)
    assert made.left_open == ()
    assert stats.bytes_after <= made.amount.value
    full = sum(lengths) * stats.bytes_before // (len(lengths) * max(lengths))
    assert made.amount.value == (16000 if "16KB" in spec else int(policy.amount.value * full))
    assert made == divided_for(model, policy, lengths, max(lengths))
    with compress(model, made) as session:
        assert same(ours, held(session, session.prefill(**inputs)))


def test_a_cache_starts_anew_after_a_reset_and_blocks_share_no_division():
    model, long, short = zoo.build("llava"), *(zoo.prompt("llava", lengths=(n,)) for n in (60, 31))
    with compress(model, ALL) as session:
        session.prefill(**long)
        first = session.stats.policy
        session.prefill(**short)
        second = session.stats.policy
        cache = session.prefill(**long)
        assert session.stats.policy == first != second
        cache.reset()
        session.prefill(**short, **{CACHE: cache})
        assert session.stats.policy == second


def test_in_chunks_a_prompt_is_divided_by_all_of_it():
    model, inputs, vision = embedded("llava", lengths=(40,))
    with compress(model, ALL, vision=vision) as session:
        session.prefill(**inputs)
        whole = session.stats
        in_chunks(session, inputs, (9, 30, 40))
        assert session.stats.policy == whole.policy
        assert session.stats.bytes_after <= foveate.policy(whole.policy).amount.value


@pytest.mark.parametrize("spec", [ALL, "fastv.prune(layer=1,keep=auto)+snapkv:budget=20%,window=4"])
def test_later_turns_keep_their_bits_and_get_their_bytes(spec):
    model, first = zoo.build("llava"), zoo.prompt("llava", lengths=(60,))
    turn = zoo.extend("llava", first, new_text=30).cached
    with compress(model, spec) as session:
        cache = session.prefill(**first)
        before = foveate.policy(session.stats.policy)
        session.rearm(cache)
        model.generate(**turn, **{CACHE: cache}, max_new_tokens=1)
        after, stats = foveate.policy(session.stats.policy), session.stats
    assert (after.prune, after.store) == (before.prune, before.store)
    assert after.amount.value == int(0.2 * stats.bytes_before) > before.amount.value
    assert stats.bytes_after > before.amount.value
    if after.store.exact:  # codes are made of a later turn's pairs once others follow them
        assert stats.bytes_after <= after.amount.value


def test_a_branch_and_a_saved_cache_are_divided_as_the_prompt_was(tmp_path):
    model, inputs = zoo.build("llava"), zoo.prompt("llava", lengths=(60,))
    policy = foveate.policy(ALL)
    made = divided_for(model, policy, [60])
    recording = record(model, prune=made.prune, sums=False, **inputs)
    with compress(model, policy) as session:
        cache = session.prefill(**inputs)
        ours = held(session, cache)
        assert same(ours, held(session, branch(session, recording)))
        path = session.save(tmp_path / "cache.safetensors", cache=cache)
    with compress(model, policy) as session:
        loaded = session.load(path)
        assert same(ours, held(session, loaded))
        question = zoo.extend("llava", inputs, new_text=3, seed=1).cached
        assert model(**question, **{CACHE: loaded}).logits.isfinite().all()
    with compress(model, made) as session, pytest.raises(CacheMismatch, match="keep=auto"):
        session.load(path)


def test_tensors_alone_are_divided_too():
    layers = [tuple(torch.randn(1, h, 50, 16) for h in (4, 2, 2)) for _ in range(2)]
    spec = "knorm+kivi(bits={},residual=0,group=8):budget={}"
    allowed = int(0.1 * 2 * 2 * 50 * 32 * 4)
    kept, written = (
        foveate.compress_tensors(spec.format(*shares), layers)
        for shares in (("auto", "10%"), (4, f"{allowed}B"))
    )
    assert all(torch.equal(a.mask, b.mask) for a, b in zip(kept, written, strict=True))
    assert 5 < int(kept[0].counts[0, 0]) < 50  # more than 10 % of the pairs


def test_what_each_part_left_is_said_in_a_line():
    model, inputs = zoo.build("llava"), zoo.prompt("llava", lengths=(60,))
    with compress(model, ALL) as session:
        session.prefill(**inputs)
        stats = session.stats
    left = stats.remaining
    assert left.parts == ("computed", "pairs", "bits")
    assert left.visual == int(stats.visual) > 0
    assert left.computed == float(stats.computed.mean()) < 1
    assert left.pairs == stats.kept_tokens / 60
    assert left.made == 32
    assert 4 < left.bits < 32  # the last four pairs as they came
    assert left.bytes == stats.bytes_after / stats.bytes_before
    assert str(left) in str(stats).splitlines()[1]
    assert f"{left.pairs:.1%} of the pairs held; {left.bits:.1f} of 32 bits a number" in str(left)
    for spec, parts in {"full": (), "knorm:budget=20%": ("pairs",), "kivi": ("bits",)}.items():
        with compress(model, spec, strict=True) as session:
            session.prefill(**zoo.prompt("llava", lengths=(23, 60)))
            assert session.stats.remaining.parts == (() if spec == "kivi" else parts)


def test_what_is_always_kept_raises_the_budget_or_is_refused():
    model, inputs = zoo.build("llava"), zoo.prompt("llava", lengths=(60,))
    tight = ALL.replace("20%", "1%")
    with compress(model, tight) as session:
        session.prefill(**inputs)
        assert bool(session.stats.raised.all())
    with compress(model, tight, strict=True) as session, pytest.raises(InvalidBudget, match="B"):
        session.prefill(**inputs)


def test_models_whose_pairs_are_not_known_beforehand_are_refused(monkeypatch):
    model, inputs = zoo.fresh("llama"), zoo.prompt("llama", lengths=(60,))
    spec = "knorm+kivi(bits=auto):budget=10%"
    monkeypatch.setattr(model.config, "head_dim", 8)
    with compress(model, spec) as session, pytest.raises(UnsupportedModel, match="keep=50%"):
        session.prefill(**inputs)
    monkeypatch.setattr(
        "foveate.hf.attach.model_policy.layer_settings", lambda config, name: [None] * 9
    )
    with pytest.raises(UnsupportedModel, match="has no number and size"):
        divided_for(model, foveate.policy(spec), [60])


def test_a_stream_has_no_length_to_divide_by():
    from foveate.hf.endless.endless import endless

    with pytest.raises(InvalidParameter, match="never ends"):
        endless(foveate.policy("knorm+kivi(bits=auto):budget=64MB"), None)
