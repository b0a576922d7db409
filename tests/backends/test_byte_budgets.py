"""A budget in bytes holds every tensor that the layers hold, and is filled to the last token."""

import copy

import pytest
import torch

import foveate
from foveate.errors import InvalidBudget
from foveate.hf.model.internals import CACHE
from foveate.methods.pyramidkv import Pyramid
from tests import zoo
from tests.pairs import by_turns

ROWS = {"alone": (60,), "even": (60, 60), "left-padded": (23, 60), "short row": (9, 60)}
SPECS = {
    "dense": "snapkv:budget={B},window=4",
    "dense, sums": "h2o:budget={B}",
    "dense, sums in float64": "roco:budget={B}",
    "layers differ": "pyramidkv:budget={B},window=4",
    "layers differ, as released": "pyramidkv:budget={B},window=4,as_released=true",
    "layers differ by scores, sums": "prefixkv:budget={B}",
    "ragged": "adakv:budget={B},window=4",
    "ragged, as released": "adakv:budget={B},window=4,as_released=true",
    "ragged, sums": "h2o+adakv:budget={B}",
    "ragged, read again": "kvzip:budget={B}",
    "codes": "knorm+kivi(residual=4,group=4):budget={B}",
    "codes, ragged": "adakv+kivi(bits=4,residual=8,group=8):budget={B},window=4",
    "narrow": "think:budget={B},window=4",
    "narrow, ragged": "think(window=4)+adakv:budget={B}",
}
STAYING = {
    "rewritten": "h2o:budget={B},when=over_budget",
    "queries": "snapkv:budget={B},window=4,when=over_budget",
    "in steps": "mixkv:budget={B},window=4,when=over_budget(every=5)",
    "ragged": "adakv:budget={B},window=4,when=over_budget",
    "narrow": "think:budget={B},window=4,when=over_budget(every=3)",
    "layers differ": "pyramidkv:budget={B},window=4,when=over_budget",
}


def mask_of(lengths, columns):
    pads = max(lengths) - torch.tensor(lengths)
    return (torch.arange(columns) >= pads[:, None]).long()


def held(policy, lengths, answer=0, family="llama", **inputs):
    """A prompt's statistics, the bytes that it holds, and the most while an answer grows."""
    model, given = zoo.build(family), zoo.prompt(family, lengths=lengths)
    with foveate.compress(model, policy) as session, torch.no_grad():
        cache = session.prefill(**given)
        assert session.bytes_held == session.stats.bytes_after == counted(cache)
        most = before = session.bytes_held
        stats = session.stats
        for step in range(answer):
            columns = max(lengths) + step + 1
            one = torch.full((len(lengths), 1), 7)
            mask = mask_of(lengths, columns)
            model(input_ids=one, attention_mask=mask, **{CACHE: cache}, use_cache=True)
            most = max(most, session.bytes_held)
    return stats, before, most


def counted(cache):
    """Bytes of the tensors behind a cache's layers, each as often as layers hold it."""
    return sum(of_tensors(layer.pairs) + layer.memory.nbytes for layer in cache.layers)


def of_tensors(pairs):
    """Every tensor among an object's attributes, and theirs."""
    if isinstance(pairs, torch.Tensor):
        return pairs.nbytes
    if isinstance(pairs, (tuple, list)):
        return sum(map(of_tensors, pairs))
    if type(pairs).__module__.startswith("foveate"):
        return sum(map(of_tensors, vars(pairs).values()))
    return 0


@by_turns(2, kind=SPECS, rows=ROWS, budget=("9000B", "20000B", "31000B"))
def test_it_is_filled_to_the_last_token_that_fits(rows, kind, budget):
    allowed = int(budget[:-1])
    policy = foveate.policy(kind.format(B=budget))
    stats, before, _ = held(policy, rows)
    tokens = int(stats.asked.max())
    raised = bool((stats.asked < max(1, policy.select.protects)).any())
    assert raised or before <= allowed
    assert not bool(stats.raised.any()) or raised or "as_released" in policy.spec
    more = max(tokens + 1, policy.select.protects)
    if tokens < max(rows) and "as_released" not in policy.spec:  # whose totals drift
        _, after, _ = held(policy.but(budget=more), rows)
        # of a ragged layer's heads, which groups are full only scores tell
        groups = 3 * 2 * len(rows) * (2 * 16 * 4 + 4) if "adakv+kivi" in policy.spec else 0
        assert after > allowed - groups


@by_turns(1, kind=STAYING, rows=ROWS, budget=("24000B", "30000B", "64000B"))
def test_over_budget_it_holds_for_the_answer_too(rows, kind, budget):
    allowed = int(budget[:-1])
    policy = foveate.policy(kind.format(B=budget))
    stats, before, most = held(policy, rows, answer=40)
    assert not bool(stats.raised.any())
    assert before <= most <= allowed
    token = 3 * 2 * len(rows) * (2 * 16 * 4 + 4)  # layers, heads, rows: a pair and its column
    sums = 3 * 2 * len(rows) * (40 + max(rows)) * 4  # of the longest head, where they are ragged
    if isinstance(policy.budget, Pyramid):  # whose short rows leave more than they may use later
        return
    assert most > allowed - (policy.when.beyond + 2) * token - (sums if "adakv" in kind else 0)


def test_what_fits_whole_stays_as_it_is():
    _, bytes_held, _ = held("knorm:budget=100%", (60,))
    assert bytes_held == 60 * 3 * 2 * 2 * 16 * 4
    for policy in ("knorm", "h2o"):
        sums = 60 * 3 * 2 * 4 if policy == "h2o" else 0
        allowed = bytes_held + sums
        stats, before, _ = held(f"{policy}:budget={allowed}B", (60,))
        assert stats.held.tolist() == [60]
        assert before <= allowed
        stats, before, _ = held(f"{policy}:budget={allowed - 1}B", (60,))
        assert 55 < stats.held.tolist()[0] < 60
        assert before < allowed


def test_padding_goes_where_the_rows_fit_and_it_does_not():
    """Two rows whose real tokens fit: the padding of the shorter one would not."""
    _, whole, _ = held("knorm:budget=100%", (9, 60))
    stats, before, _ = held(f"knorm:budget={whole - 1000}B", (9, 60))
    assert stats.held.tolist() == [9, 60]
    assert before <= whole - 1000


@pytest.mark.parametrize("spec", ["mixkv:budget=20000B,window=4", "infinipotv:budget=20000B"])
def test_prompts_of_images_and_prompts_in_chunks_hold_it(spec):
    model, inputs = zoo.build("llava"), zoo.prompt("llava", lengths=(60, 70))
    for chunk in (None, 16):
        more = {} if chunk is None else {"prefill_chunk_size": chunk}
        with foveate.compress(model, spec) as session:
            model.generate(**inputs, **more, max_new_tokens=1, do_sample=False)
            assert session.stats.bytes_after <= 20000
            assert session.stats.bytes_after > 18000


def test_a_second_turn_and_a_saved_context_hold_it(tmp_path):
    model, inputs = zoo.build("llama"), zoo.prompt("llama", lengths=(60,))
    spec = "h2o:budget=20000B,when=over_budget"
    with foveate.compress(model, spec) as session, torch.no_grad():
        cache = session.prefill(**inputs)
        path = session.save(tmp_path / "context.safetensors")
        forked = copy.deepcopy(cache)
        session.rearm()
        model(input_ids=torch.full((1, 20), 7), **{CACHE: cache})
        assert session.stats.seen == 80
        for one in (session.cache, forked, session.load(path)):
            for _ in range(3):
                model(input_ids=torch.full((1, 1), 7), **{CACHE: one})
                assert sum(layer.nbytes for layer in one.layers) <= 20000


def test_a_store_that_does_not_say_what_it_takes_is_refused():
    from foveate.policies.spec import stage

    @stage("test_silent_store")
    class Silent:
        exact = True

        def __call__(self, pairs):
            return pairs

    with pytest.raises(InvalidBudget, match="does not say how many"):
        foveate.knorm(budget="64MB").but(store=Silent())
