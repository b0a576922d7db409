"""What stages see is the model's own attention, and what they keep is the sample's own."""

from dataclasses import dataclass

import pytest
import torch

import foveate
from foveate.cache.layer import Scores
from foveate.cache.pairs import DensePairs, RaggedPairs
from foveate.hf.model.internals import CACHE
from foveate.stages.budget import Uniform
from foveate.stages.select import TopK
from tests import zoo
from tests.conformance.budgets import RandomHeads
from tests.conformance.compare import TOLERANCE
from tests.conformance.policies import KEEPING_LESS, METHODS
from tests.jitter import other_side
from tests.pairs import by_turns
from tests.ties import NEAR

SEEN = []


@dataclass(frozen=True, kw_only=True)
class Spy:
    """A score that writes down the layers it is shown."""

    window: int = 10**6

    def queries(self, tokens):
        return self.window

    def __call__(self, layer):
        SEEN.append(layer)
        return Scores(layer.pos.float())


def spy_on(model, inputs):
    SEEN.clear()
    policy = foveate.Policy(score=Spy(), budget=Uniform(amount=8), select=TopK())
    with foveate.compress(model, policy) as session:
        session.prefill(**inputs)
        indices = [layer.model_index for layer in session.cache.layers if hasattr(layer, "pairs")]
    return dict(zip(indices, SEEN, strict=True))


@pytest.mark.parametrize("lengths", [(40,), (23, 31, 40)], ids=["alone", "left-padded"])
@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_attention_recomputed_from_what_is_seen_equals_the_models_own(family, lengths):
    model, inputs = zoo.fresh(family), zoo.prompt(family, lengths=lengths)
    for config in (model.config, model.config.get_text_config(decoder=True)):
        config._attn_implementation_internal = "eager"
    with other_side():
        theirs = model(**inputs, output_attentions=True).attentions
    for index, layer in spy_on(model, inputs).items():
        k = layer.k.repeat_interleave(layer.groups, 1)
        visible = layer.slots.visible(layer.q.shape[2]).expand(-1, layer.k.shape[1], -1, -1)
        logits = (layer.q @ k.transpose(2, 3)) * layer.scale
        hidden = ~visible.repeat_interleave(layer.groups, 1)
        ours = logits.masked_fill(hidden, float("-inf")).softmax(-1)
        real = layer.q_pos >= 0
        assert theirs[index].shape == ours.shape
        for row, queries in enumerate(real):
            difference = ours[row][:, queries] - theirs[index][row][:, queries]
            assert difference.abs().max() <= TOLERANCE, (index, row)


@pytest.mark.parametrize("family", zoo.VLM_FAMILIES)
def test_visual_tokens_are_the_placeholders_and_images_are_counted(family):
    inputs = zoo.prompt(family, lengths=(60, 70), images=2)
    model = zoo.build(family)
    ids = inputs["input_ids"]
    placeholders = ids == model.config.image_token_id
    layer = next(iter(spy_on(model, inputs).values()))
    assert torch.equal(layer.vision[:, 0], placeholders)
    if family != "mllama":  # one token stands for a whole image there
        assert layer.slots.image.max() == 1


def test_an_image_that_comes_in_two_passes_is_one_image():
    model, ids = zoo.build("llama"), torch.full((1, 30), 30)
    vision = torch.zeros(1, 30, dtype=torch.bool)
    vision[:, 5:12] = vision[:, 20:25] = True
    embeddings = model.get_input_embeddings()(ids)
    SEEN.clear()
    policy = foveate.Policy(score=Spy(window=1), budget=Uniform(amount=8), select=TopK())
    with foveate.compress(model, policy, vision=vision) as session:
        session.expect(tokens=30)
        cache = None
        for part in embeddings.split(10, dim=1):
            cache = model(inputs_embeds=part, **{CACHE: cache})[CACHE]
    assert cache.get_seq_length() == 30
    image = [-1] * 5 + [0] * 7 + [-1] * 8 + [1] * 5 + [-1] * 5
    assert [layer.slots.image[0, 0].tolist() for layer in SEEN] == [image] * len(cache.layers)


@by_turns(method=KEEPING_LESS.keys(), family=zoo.FAMILIES)
def test_a_samples_kept_set_does_not_depend_on_its_batch_or_padding(family, method):
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=(23, 31, 40))
    policy = recorded(METHODS[method])
    together, scores = kept_of(model, policy, inputs), list(SCORES)
    for row in range(3):
        with other_side():
            alone = kept_of(model, policy, zoo.row(family, inputs, row))
        for layer, (a, b) in enumerate(zip(together, alone, strict=True)):
            for head, (ours, theirs) in enumerate(zip(a[row], b[0], strict=True)):
                own = scores[layer][row, head, -inputs["attention_mask"][row].sum() :]
                assert same_up_to_ties(ours, theirs, own), (layer, row, head)


SCORES = []


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A score that is written down."""

    of: object

    def queries(self, tokens):
        return self.of.queries(tokens)

    def __call__(self, layer):
        if layer.ordinal == 0:
            SCORES.clear()
        scores = self.of(layer)
        SCORES.append(scores.values)
        return scores


def recorded(policy):
    return policy.but(score=Recorded(of=policy.score))


def same_up_to_ties(ours, theirs, scores):
    """Equal sets, but for tokens that score the same to rounding.

    A word that stands in a prompt twice has the same key norm twice in the first layer; which of
    the two is kept hangs on the last bit, which changes with the shape of a matrix product.
    """
    ours, theirs = set(ours), set(theirs)
    odd = torch.tensor(sorted(ours ^ theirs), dtype=torch.long)
    near = NEAR * max(1.0, float(scores.nan_to_num(0, 0, 0).abs().mean()))
    tied = len(odd) == 0 or float(scores[odd].max() - scores[odd].min()) <= near
    return len(ours) == len(theirs) and tied


def kept_of(model, policy, inputs):
    """Kept token indices per layer, row and head, counted without padding.

    ``generate`` counts positions without padding, too, which ``forward`` alone does not: some
    scores read keys channel by channel, and so depend on how far they were turned.
    """
    with foveate.compress(model, policy) as session:
        model.generate(**inputs, max_new_tokens=1, do_sample=False)
        cache = session.cache
    pads = (inputs["attention_mask"] == 0).sum(-1)
    return [
        [
            [[c - int(pad) for c in head if c >= 0] for head in heads]
            for heads, pad in zip(layer.pairs.columns.tolist(), pads, strict=True)
        ]
        for layer in cache.layers
        if hasattr(layer, "pairs")
    ]


@pytest.mark.parametrize("method", METHODS)
def test_runs_are_deterministic(method):
    model, inputs = zoo.build("qwen2_5_vl"), zoo.prompt("qwen2_5_vl", lengths=(31, 40))
    one, two = (kept_of(model, METHODS[method], inputs) for _ in range(2))
    assert one == two


def held_bytes(thing, seen=None):
    """Bytes of every distinct tensor storage that an object holds, found by walking it."""
    seen = {} if seen is None else seen
    for value in vars(thing).values():
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes()
        elif isinstance(value, DensePairs | RaggedPairs):
            held_bytes(value, seen)
    return sum(seen.values())


@pytest.mark.parametrize("ragged", [False, True], ids=["dense", "ragged"])
def test_bytes_reported_are_the_bytes_of_the_tensors_held(ragged):
    model, inputs = zoo.build("llava"), zoo.prompt("llava", lengths=(40, 40))
    policy = foveate.random(budget=0.3)
    policy = policy.but(budget=RandomHeads(amount=0.3)) if ragged else policy
    with foveate.compress(model, policy) as session:
        session.prefill(**inputs)
        layers = session.cache.layers
        assert isinstance(layers[0].pairs, RaggedPairs if ragged else DensePairs)
        assert session.stats.bytes_after == sum(held_bytes(layer.pairs) for layer in layers)
        full = 2 * 40 * 2 * (16 + 16) * 4 * len(layers)
        assert session.stats.bytes_before == full
        columns = sum(8 * layer.pairs.counts.numel() + 8 for layer in layers) if ragged else 0
        kept = sum(int(layer.kept.sum()) for layer in session.stats.layers)
        assert session.stats.bytes_after == kept * (32 * 4 + 4) + columns
        assert kept == 12 * 2 * 2 * len(layers)
        model.generate(**inputs, max_new_tokens=20)
        assert session.bytes_held == sum(held_bytes(x.pairs) for x in session.cache.layers)


def test_stats_say_what_was_kept():
    model, inputs = zoo.build("llama"), zoo.prompt("llama", lengths=(20, 40))
    with foveate.compress(model, "snapkv:budget=50%,window=4") as session:
        model.generate(**inputs, max_new_tokens=3)
        stats = session.stats
    assert all(kept.tolist() == [[10, 10], [20, 20]] for kept in stats.kept)
    assert stats.seen == 40
    assert stats.kept_tokens == 15
    assert 0 < stats.bytes_after < stats.bytes_before
    assert stats.seconds > 0
    assert "snapkv:budget=50%,window=4" in str(stats)


def test_memory_stays_bounded_while_decoding_over_budget():
    model, inputs = zoo.build("llama"), zoo.prompt("llama")
    with foveate.compress(model, "h2o:budget=16,when=over_budget(every=4)") as session:
        sizes = []
        cache = session.prefill(**inputs)
        for _ in range(60):
            model(torch.tensor([[33]]), **{CACHE: cache})
            sizes.append(max(layer.pairs.longest for layer in cache.layers))
        assert cache.get_seq_length() == 100
    assert max(sizes) <= 16 + 3
    assert set(sizes) == {16, 17, 18, 19}
