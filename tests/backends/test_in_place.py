"""Rules that evict while decoding: a new pair is written where the old one stood, and all else is
as if the layer were stored anew at every token.
"""

import copy

import pytest
import torch
from torch.testing import assert_close

import foveate
from foveate.cache.pairs import DensePairs, RewrittenPairs
from foveate.hf.layer import phases
from foveate.hf.layer.support import foveate_layers
from foveate.hf.model.internals import CACHE
from tests import zoo
from tests.jitter import WIDER, other_side

H2O = "h2o:budget=20,when=over_budget"
SPECS = (
    H2O,
    "h2o:budget=50%,recent=3,group=max,when=over_budget",
    "prefixkv:budget=50%,distance=6",
    "prefixkv:budget=50%,distance=6,counted_from=newest",
    "elastic_cache:budget=50%",
    "adakv:budget=50%,window=4,when=fixed_slot",
)
STEPS, ROOM = 24, 6
NEAR = 1e-5 + WIDER


def prompts(rows=1):
    return zoo.prompt("llama", lengths=(40,) * rows)


def tokens(rows, count, seed=1):
    return torch.randint(20, 80, (rows, count), generator=torch.Generator().manual_seed(seed))


def go_on(model, cache, ids, each=1):
    """Logits, one pass for ``each`` tokens."""
    return [model(input_ids=part, **{CACHE: cache}).logits for part in ids.split(each, dim=1)]


def held(cache):
    """Of every layer: columns, keys and values in order, and running sums."""
    found = []
    for layer in foveate_layers(cache):
        layer.in_order()
        found.append((*layer.pairs.padded(), layer.memory.state.get("received")))
    return found


def same(one, other, *, sums=True):
    """Which sums are remembered is the rule's business, where nothing reads them."""
    for mine, theirs in zip(held(one), held(other), strict=True):
        assert torch.equal(mine[2], theirs[2])
        assert_close(mine[:2], theirs[:2], rtol=1e-4, atol=NEAR)
        if sums:
            assert_close(mine[3], theirs[3], rtol=1e-4, atol=NEAR)


@pytest.fixture
def stored_anew(monkeypatch):
    """Switches to storing a layer anew at every eviction."""

    def switch():
        monkeypatch.setattr(phases, "_replaceable_pairs", lambda layer, queries: None)
        monkeypatch.setattr(phases, "_vacate_slot", lambda layer: False)

    return switch


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("spec", SPECS)
@torch.no_grad()
def test_a_slot_written_again_is_as_good_as_a_layer_stored_anew(spec, rows, stored_anew):
    model, ids = zoo.build("llama"), tokens(rows, STEPS)
    with foveate.compress(model, spec) as session:
        cache = session.prefill(**prompts(rows))
        other = session.fork(cache)
        ours = go_on(model, cache, ids)
        kinds = {type(layer.pairs) for layer in foveate_layers(cache)}
        stored_anew()
        with other_side():
            theirs = go_on(model, other, ids)
    assert (RewrittenPairs in kinds) != spec.startswith("adakv")  # heads of their own lengths
    assert_close(ours, theirs, rtol=1e-4, atol=NEAR)
    same(cache, other, sums=spec.startswith("h2o"))


@pytest.mark.parametrize("spec", [H2O, "prefixkv:budget=20%,distance=6"])
@torch.no_grad()
def test_what_is_held_stays_where_it_is_for_as_long_as_there_is_room(spec):
    model = zoo.build("llama")
    with foveate.compress(model, spec) as session:
        cache = session.prefill(**prompts())
        go_on(model, cache, tokens(1, 4))
        places = [layer.pairs.k.data_ptr() for layer in foveate_layers(cache)]
        go_on(model, cache, tokens(1, STEPS))
        assert [layer.pairs.k.data_ptr() for layer in foveate_layers(cache)] == places


@torch.no_grad()
@pytest.mark.parametrize("spec", [H2O, "prefixkv:budget=50%,distance=6"])
def test_several_tokens_rows_and_files_find_the_pairs_in_order(spec, tmp_path, stored_anew):
    model = zoo.build("llama")

    def conversation(session, cache, path):
        go_on(model, cache, tokens(1, 7))
        cache.batch_repeat_interleave(2)
        go_on(model, cache, tokens(2, 5, seed=2))
        go_on(model, cache, tokens(2, 6, seed=3), each=3)  # a question of several tokens
        cache.reorder_cache(torch.tensor([1, 1]))
        go_on(model, cache, tokens(2, 5, seed=4))
        session.save(path, cache=cache)
        loaded = session.load(path)
        copied = copy.deepcopy(cache)
        return [go_on(model, each, tokens(2, 5, seed=5)) for each in (cache, loaded, copied)]

    with foveate.compress(model, spec) as session:
        cache = session.prefill(**prompts())
        other = session.fork(cache)
        ours = conversation(session, cache, tmp_path / "ours")
        stored_anew()
        with other_side():
            theirs = conversation(session, other, tmp_path / "theirs")
    assert_close(ours, theirs, rtol=1e-4, atol=NEAR)
    assert_close(ours[0], ours[1])
    assert_close(ours[0], ours[2])
    same(cache, other, sums=spec == H2O)


def test_pairs_made_under_inference_mode_go_on_without_it():
    model = zoo.build("llama")
    with foveate.compress(model, H2O) as session:
        with torch.inference_mode():
            cache = session.prefill(**prompts())
            go_on(model, cache, tokens(1, 3))
        with torch.no_grad():
            go_on(model, cache, tokens(1, 3))
        assert {layer.pairs.longest for layer in foveate_layers(cache)} == {20}


def rewritten():
    """Three pairs of two heads, at the columns 1, 4 and 6, with room for one more."""
    k = torch.arange(6.0).view(1, 2, 3, 1)
    pairs = DensePairs(k, -k, torch.tensor([1, 4, 6]).expand(1, 2, 3), first=9)
    pairs.reserve(4)
    return RewrittenPairs(pairs)


def test_each_head_gives_up_a_slot_of_its_own():
    pairs, new = rewritten(), torch.tensor([70.0, 80.0]).view(1, 2, 1, 1)
    pairs.vacate(torch.tensor([[[0], [1]]]))
    assert pairs.longest == 2
    assert pairs.columns.tolist() == [[[4, 6], [1, 6]]]
    pairs.append(new, -new)
    assert pairs.k.flatten(1).tolist() == [[70, 1, 2, 3, 80, 5]]
    assert pairs.columns.tolist() == [[[4, 6, 9], [1, 6, 9]]]
    k, v, _ = pairs.padded()
    assert k.flatten(1).tolist() == [[1, 2, 70, 3, 5, 80]]
    assert torch.equal(k, -v)
    numbers = torch.tensor([[[7.0, 1, 2], [1, 8, 2]]])
    assert pairs.of_slots(numbers).tolist() == [[[1, 2, 7], [1, 2, 8]]]


def test_all_heads_give_up_the_same_place_and_may_grow():
    pairs, new = rewritten(), torch.tensor([70.0, 80.0]).view(1, 2, 1, 1)
    pairs.append(new, -new)
    pairs.vacate_nth(1)
    assert pairs.columns.tolist() == [[[1, 6, 9]] * 2]
    pairs.append(new + 1, -new - 1)
    pairs.append(new + 2, -new - 2)  # beyond its room
    assert pairs.columns.tolist() == [[[1, 6, 9, 10, 11]] * 2]
    assert pairs.padded().k[0, 0, :, 0].tolist() == [0, 2, 70, 71, 72]
