"""Methods that read the prompt a second time, behind a cut: of what all layers computed alone."""

import pytest
import torch

import foveate
from foveate.cache.layer import Layer, Scored, Scores
from foveate.cache.slots import Slots
from foveate.hf.layer.support import text_config
from foveate.hf.model.decoder import find
from foveate.methods.nacl import TopAndDrawn
from foveate.stages.score.attention_free import gumbel
from tests import zoo
from tests.pairs import by_turns

from .compare import BATCHES, check_pruned, in_chunks
from .test_oracle import CUTS, embedded

LIKE_LLAVA = ["llava", "qwen2_vl", "qwen3_vl", "paligemma", "internvl", "mobilevlm", "smolvlm"]
READING_AGAIN = [
    "kvzip:budget=60%",
    "kvzip:budget=60%,chunk=7",
    "kvzip:budget=60%,pieces=images,over=piece",
    "kvzip:budget=60%,by=damage,heads=even",
]


@by_turns(family=LIKE_LLAVA, cut=CUTS, behind=READING_AGAIN, lengths=BATCHES)
def test_what_is_kept_is_exact(family, cut, behind, lengths):
    policy = foveate.policy(f"{cut}+{behind}")
    check_pruned(zoo.build(family), policy, zoo.prompt(family, lengths=lengths))


@pytest.fixture
def fed():
    """How many tokens the last layer of a model that is watched computes in each call."""
    found, hooks = [], []

    def note(module, args, output):
        found.append((output[0] if isinstance(output, tuple) else output).shape[1])

    def watch(model):
        decoder = find(model, text_config(model)).decoder
        hooks.append(decoder.layers[-1].register_forward_hook(note))
        return found

    yield watch
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("cut", [CUTS["at the door"], CUTS["between"], CUTS["twice"]])
@pytest.mark.parametrize("chunk", [2048, 6])
def test_nothing_that_was_dropped_is_read_again(cut, chunk, fed):
    """The last layer reads twice what it computed, and not one token more."""
    model, inputs, vision = embedded("llava", lengths=(40,))
    lengths = fed(model)
    policy = f"{cut}+kvzip:budget=40%,chunk={chunk}"
    with foveate.compress(model, policy, vision=vision) as session:
        in_chunks(session, inputs, (20, 33, 40))
        computed = 30 + round(10 * float(session.stats.computed[-1, 0]))
    assert computed < 40
    assert sum(lengths) == 2 * computed


KEPT_BY = [
    "kvzip:budget=12",
    "kvzip:budget=12,by=damage",
    "compactor:budget=12,blending=0.5,sinks=1,recent=1",
    "snapkv:budget=12,window=4",
    "h2o:budget=12",
    "keydiff:budget=12,recent=2",
]


@by_turns(family=["llava", "internvl", "mobilevlm"], behind=KEPT_BY)
def test_the_same_is_kept_as_of_the_short_prompt_at_these_positions(family, behind):
    model, inputs, vision = embedded(family, lengths=(40,))
    embeds = inputs["inputs_embeds"]
    with foveate.compress(model, f"{CUTS['at the door']}+{behind}", vision=vision) as session:
        session.prefill(inputs_embeds=embeds)
        ours = [layer.pairs.columns for layer in session.cache.layers]
        (dropped,) = session.cache.layers[0].state.tokens.dropped.values()
    left = (~dropped[0]).nonzero()[:, 0]
    assert len(left) < 40
    with foveate.compress(model, behind, vision=vision[:, left]) as session:
        session.prefill(inputs_embeds=embeds[:, left], position_ids=left[None])
        theirs = [layer.pairs.columns for layer in session.cache.layers]
    for pruned, short in zip(ours, theirs, strict=True):
        theirs_at = left[short.long().clamp_min(0)].masked_fill(short < 0, -1)
        assert torch.equal(pruned, theirs_at.to(pruned))


def test_nacl_lots_go_by_the_position_of_a_token():
    """A token draws the same where its neighbours were dropped."""
    heads, n, d = 2, 24, 4
    pos = torch.tensor([0, 1, 4, 7, 8, 9, 13, 17, 18, 19, 20, 23])
    slots = Slots(
        pos=pos.expand(1, heads, -1), q_pos=torch.tensor([[n - 1]]), read=torch.tensor([n])
    )
    k = torch.zeros(1, heads, len(pos), d)
    layer = Layer(q=k[:, :, :1], k=k, v=k, slots=slots, scale=1.0, ordinal=3)
    values = torch.zeros(1, heads, len(pos))
    scored = Scored(layer, Scores(values), values, torch.tensor([4]))
    kept = TopAndDrawn(drawn=1.0, seed=5, sinks=0)(scored, torch.full((1, heads), 4))
    for head in range(heads):
        at = torch.full((), head)
        lots = [float(gumbel(5, torch.full((), 3), at, place)) for place in pos]
        best = sorted(range(len(pos)), key=lambda slot: -lots[slot])[:4]
        assert kept[0, head].nonzero()[:, 0].tolist() == sorted(best)
