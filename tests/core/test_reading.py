"""A prompt read without any engine: in one pass, or in any passes, and what is kept is the same."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import foveate
from foveate.compression.layer_memory import Pass, Phase
from foveate.compression.pipeline import keep, observed, score
from foveate.compression.reading import PromptReading
from foveate.compression.tensors import layers_of
from foveate.errors import InvalidInput
from tests.core.lean import leaner
from tests.core.prompts import prompt

SPECS = (
    "snapkv:budget=6,window=3",
    "h2o:budget=6",
    "knorm:budget=6",
    "adakv:budget=6,window=3",
    "snapkv(window=3)+prefixkv:budget=6",
    "mixkv(window=3)+david:budget=6",
    "csp:budget=6",
    "lookm:budget=6",
    "roco:budget=6",
    "keyformer:budget=6",
    "streaming_llm:budget=6",
)


def literal(policy, layers):
    """A reading in one go, written out: score all, then keep layer by layer or all at once."""
    notes, scored = [], []
    for layer in layers:
        slots = layer.slots.with_budget(policy.tokens(layer.slots.lengths, 0))
        layer = replace(layer, slots=slots, earlier=tuple(notes))
        layer = replace(layer, state=observed(policy, layer))
        scored.append(score(policy, layer))
        notes.append(scored[-1].scores.notes if scored[-1] else {})
    if any(one is None for one in scored):
        return [None] * len(layers)
    if policy.scope == "model":
        return [kept.mask for kept in keep(policy, scored)]
    return [keep(policy, [one])[0].mask for one in scored]


def passes(layer, sizes):
    """The layer as passes of these sizes show it: all slots so far, the pass's own queries."""
    end = 0
    for size in sizes:
        start, end = end, end + size
        slots = layer.slots
        image = None if slots.image is None else slots.image[:, :, :end]
        spot = None if slots.spot is None else slots.spot[:, :, :end]
        q_image = None if slots.q_image is None else slots.q_image[:, start:end]
        shown = replace(
            slots,
            pos=slots.pos[:, :, :end],
            q_pos=slots.q_pos[:, start:end],
            image=image,
            spot=spot,
            q_image=q_image,
        )
        yield (
            replace(
                layer,
                q=layer.q[:, :, start:end],
                k=layer.k[:, :, :end],
                v=layer.v[:, :, :end],
                slots=shown,
            ),
            end,
        )


def read(policy, layers, sizes):
    """What is kept of every layer of a prompt that comes in these passes, all layers each."""
    reading, total, found = PromptReading(policy, len(layers)), sum(sizes), {}
    of_layers = [list(passes(layer, sizes)) for layer in layers]
    for number in range(len(sizes)):
        for shown in of_layers:
            layer, seen = shown[number]
            assert not (found and number < len(sizes) - 1), "kept before the prompt was complete"
            found |= reading.read(
                layer, Pass.of(total, seen - sizes[number], sizes[number]), layer.slots.available
            )
    return [found[i].mask if i in found else None for i in range(len(layers))]


@st.composite
def cut(draw, total):
    """Sizes of passes that add up to a total."""
    sizes = []
    while sum(sizes) < total:
        sizes.append(draw(st.integers(1, total - sum(sizes))))
    return sizes


@pytest.mark.parametrize("spec", SPECS)
@leaner
@given(
    data=st.data(),
    lengths=st.lists(st.integers(8, 14), min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
def test_any_passes_keep_what_a_single_one_keeps(spec, data, lengths, seed):
    policy, total = foveate.policy(spec), max(lengths)
    made = prompt(lengths, h=2, g=2, d=4, depth=3, seed=seed)
    mask = torch.arange(total) >= torch.tensor([total - n for n in lengths])[:, None]
    layers = layers_of(made.layers, made.vision, mask, None)
    expected = literal(policy, layers)
    for sizes in ([total], data.draw(cut(total))):
        kept = read(policy, layers, sizes)
        for mine, theirs in zip(kept, expected, strict=True):
            assert (mine is None) == (theirs is None)
            assert mine is None or torch.equal(mine, theirs), sizes


def layer_of(tokens, *, mask=None):
    (layer,) = layers_of(prompt([tokens], h=2, g=2, d=4).layers)
    return layer if mask is None else replace(layer, slots=replace(layer.slots, mask=mask))


def test_a_last_pass_that_sees_ahead_needs_the_whole_window():
    policy = foveate.policy("snapkv:budget=6,window=4")
    reading = PromptReading(policy, 1)
    first, last = (layer for layer, _ in passes(layer_of(12), [10, 2]))
    reading.read(first, Pass.of(12, 0, 10), first.slots.available)
    ahead = torch.ones(1, 1, 2, 12, dtype=torch.bool)
    last = replace(last, slots=replace(last.slots, mask=ahead))
    with pytest.raises(InvalidInput, match="shorter than the observation window"):
        reading.read(last, Pass.of(12, 10, 2), last.slots.available)


def test_an_answer_is_kept_whole_where_the_rule_does_not_decode():
    reading = PromptReading(foveate.policy("knorm:budget=6"), 1)
    layer = layer_of(12)
    assert list(reading.completed(layer)) == [0]
    assert reading.read(layer, Pass.of(11, 11, 1), layer.slots.available) == {}


def test_a_layer_with_a_budget_of_its_own_does_not_wait_for_the_others():
    made = prompt([12], h=2, g=2, d=4, depth=2)
    first, last = layers_of(made.layers)
    policy = foveate.policy("prefixkv:budget=6,when=after_prefill")
    assert policy.scope == "model"
    reading, mine = PromptReading(policy, 2), foveate.policy("knorm:budget=5").budget
    for layer in (first, last):
        found = reading.read(layer, Pass.of(12, 0, 12), layer.slots.available, budget=mine)
        assert list(found) == [layer.ordinal]
    together = PromptReading(policy, 2)
    assert together.completed(first) == {}
    assert list(together.completed(last)) == [0, 1]


def test_every_moment_is_told_what_is_held_seen_and_was_kept():
    told = []

    class Rule:
        decodes, reads = True, True

        def __call__(self, moment):
            told.append(moment)
            return moment.prompt

    policy = foveate.policy("knorm:budget=6").but(when=Rule())
    reading = PromptReading(policy, 1)
    for layer, seen in passes(layer_of(12), [8, 2, 2]):
        at = Pass.of(10, seen - layer.q.shape[2], layer.q.shape[2])
        reading.read(layer, at, torch.full((1, 2), min(seen, 8)))
    assert [m.prompt for m in told] == [False, True, False]
    assert [m.seen.tolist() for m in told] == [[8], [10], [12]]
    assert [m.length.tolist() for m in told] == [[0], [10], [10]]
    assert [m.kept.tolist() for m in told] == [[[6, 6]], [[6, 6]], [[6, 6]]]
    assert [m.stored.tolist() for m in told] == [[[8, 8]]] * 3


@pytest.mark.parametrize(
    ("prompt", "computed", "new", "phase"),
    [
        (5, 0, 4, Phase.READING),
        (5, 0, 5, Phase.FINISHING),
        (5, 4, 1, Phase.FINISHING),
        (5, 0, 9, Phase.FINISHING),  # resumed after a preemption: prompt and answer at once
        (5, 5, 1, Phase.ANSWERING),
        (5, 8, 1, Phase.ANSWERING),
        (0, 0, 4, Phase.ANSWERING),  # a warm-up pass
    ],
)
def test_phase_of_a_pass(prompt, computed, new, phase):
    assert Pass.of(prompt, computed, new).phase is phase
