"""What each method keeps, against a literal reading of its paper, token by token."""

import math
from dataclasses import fields, replace

import pytest
import torch

import foveate
from foveate.cache.layer import Layer
from foveate.cache.slots import Slots
from foveate.policies.prunes import PRUNES
from foveate.policies.pruning import EnteringTokens
from foveate.policies.spec import make_stage
from tests import zoo

PADS, VISUAL = (0, 5), range(7, 19)
LENGTH, HEADS, GROUPS, SIZE, WIDTH = 24, 2, 2, 8, 16


def entering(layer, given=None, seed=0):
    """Two rows, the second padded in front, with an image between texts."""
    draw = torch.Generator().manual_seed(seed)
    pos = torch.arange(LENGTH) - torch.tensor(PADS)[:, None]
    image = torch.where((torch.arange(LENGTH) >= 7) & (torch.arange(LENGTH) < 19), 0, -1)
    image = image.expand(2, -1).masked_fill(pos < 0, -1)
    q, k = (
        torch.randn(2, heads, LENGTH, SIZE, generator=draw) for heads in (HEADS * GROUPS, HEADS)
    )
    slots = Slots(pos=pos[:, None].expand(2, HEADS, -1), q_pos=pos)
    before = Layer(q=q, k=k, v=k, slots=slots, scale=SIZE**-0.5)
    return EnteringTokens(
        layer=layer,
        depth=8,
        hidden=torch.randn(2, LENGTH, WIDTH, generator=draw),
        pos=pos.clamp_min(-1),
        image=image,
        spot=torch.where(image >= 0, torch.arange(LENGTH) - 7, -1),
        visual_tokens=(image >= 0).sum(-1) if given is None else given,
        before=before if layer else None,
    )


def chosen(name, tokens, **how):
    """Which columns of each row go on, of the visual ones."""
    goes_on = make_stage(f"{name}_prune", how)(tokens).goes_on & tokens.vision
    return [row.nonzero()[:, 0].tolist() for row in goes_on]


def paid(tokens, row, queries):
    """What each column is paid by these queries, the mean over query heads and queries that see it:
    one softmax at a time.
    """
    before, pad = tokens.before, PADS[row]
    total, times = [0.0] * LENGTH, [0] * LENGTH
    for query in queries:
        for j in range(pad, query + 1):
            times[j] += 1
        for head in range(HEADS * GROUPS):
            key = before.k[row, head // GROUPS]
            logits = [
                float(before.q[row, head, query] @ key[j]) * before.scale for j in range(query + 1)
            ]
            weights = [math.exp(x) if j >= pad else 0.0 for j, x in enumerate(logits)]
            for j, weight in enumerate(weights):
                total[j] += weight / sum(weights) / (HEADS * GROUPS)
    return [a / max(1, b) for a, b in zip(total, times, strict=True)]


def best(values, count, among):
    """The highest of these columns, ascending."""
    return sorted(sorted(among, key=lambda j: (-values[j], j))[:count])


@pytest.mark.parametrize("by", ["last", "all"])
def test_fastv_keeps_what_the_layer_before_attended_to(by):
    tokens = entering(layer=2)
    found = chosen("fastv", tokens, keep="50%", by=by)
    for row, pad in enumerate(PADS):
        queries = [LENGTH - 1] if by == "last" else range(pad, LENGTH)
        assert found[row] == best(paid(tokens, row, queries), 6, VISUAL)


def test_pyramiddrop_halves_what_the_part_before_had():
    stage = make_stage("pyramiddrop_prune", {})
    assert stage.layers(32) == (8, 16, 24)
    assert stage.layers(3) == (1, 2)
    for layer, count in ((2, 6), (4, 3), (6, 1)):
        tokens = entering(layer=layer)
        for row, columns in enumerate(chosen("pyramiddrop", tokens)):
            assert columns == best(paid(tokens, row, [LENGTH - 1]), count, VISUAL)


def test_divprune_takes_the_farthest_from_all_before():
    tokens = entering(layer=0)
    for row, columns in enumerate(chosen("divprune", tokens, keep="40%")):
        unit = torch.nn.functional.normalize(tokens.hidden[row], dim=-1)
        distance, order = (1 - unit @ unit.T).tolist(), []
        while len(order) < 4:
            left = [j for j in VISUAL if j not in order]
            gap = {j: min(distance[j][i] for i in order or left if i != j) for j in left}
            order.append(max(left, key=gap.get))
        assert columns == sorted(order)


def test_cdpruner_adds_most_to_the_determinant_each_time():
    tokens = entering(layer=0)
    for row, columns in enumerate(chosen("cdpruner", tokens, keep="40%")):
        unit = torch.nn.functional.normalize(tokens.hidden[row].double(), dim=-1)
        text = [j for j in range(PADS[row], LENGTH) if j not in VISUAL]
        alike = {j: float((unit[text] @ unit[j]).mean()) for j in VISUAL}
        low, high = min(alike.values()), max(alike.values())
        weight = {j: (x - low + 1e-6) / (high - low + 1e-6) for j, x in alike.items()}
        scale = torch.tensor([weight.get(j, 0.0) for j in range(LENGTH)], dtype=torch.float64)
        kernel, order = scale[:, None] * (unit @ unit.T) * scale, []
        while len(order) < 4:
            some = {j: [*order, j] for j in VISUAL if j not in order}
            volume = {j: float(torch.linalg.det(kernel[at][:, at])) for j, at in some.items()}
            order.append(max(volume, key=volume.get))
        assert columns == sorted(order)


def test_spatial_keeps_every_image_at_even_distances():
    for row in chosen("spatial", entering(layer=0), keep="25%"):
        assert row == [10, 14, 18]


def test_random_draws_by_position_and_seed_alone():
    tokens = entering(layer=0)
    first, padded = chosen("random", tokens, keep="50%")
    assert len(first) == len(padded) == 6
    assert chosen("random", tokens, keep="50%", seed=1) != [first, padded]
    moved = replace(tokens, pos=tokens.pos[:1].expand(2, -1))  # the same ones in another row
    assert chosen("random", moved, keep="50%") == [first, first]


@pytest.mark.parametrize("name", [name for name in PRUNES if not name.startswith("test_")])
def test_every_way_keeps_its_share_and_all_text_in_a_model(name):
    """As the model reads: a row alone keeps what it keeps in a batch."""
    model, inputs = zoo.build("llava"), zoo.prompt("llava", lengths=(31, 40), images=2)
    how = "keep=40%" if "keep" in {one.name for one in fields(PRUNES[name].cls)} else ""
    how += {"sparsevlm": ",at=1|2", "pixelprune": "tolerance=100"}.get(name, "")
    policy, kept = foveate.policy(f"{name}.prune({how})+full"), []
    for given in (inputs, zoo.row("llava", inputs, 0)):
        with foveate.compress(model, policy) as session:
            session.prefill(**given)
            kept.append([counts[0].tolist() for counts in session.stats.kept])
            computed = session.stats.computed
    assert kept[0] == kept[1]
    assert float(computed.min()) < 1
    assert PRUNES[name].summary
