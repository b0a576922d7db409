"""ChunkKV against a slow transcription: chunks ranked, whole ones kept, the last one cut."""

import math

import pytest
import torch

import foveate
from foveate.methods.chunkkv import BestChunks, chunks_of
from foveate.stages.score import KeyNorm
from tests.literal.attention import attention, top
from tests.methods.visual import assert_keeps, sets, visual
from tests.stages.layers import random_layer

PROMPTS = {
    "alone": {"lengths": [40]},
    "left-padded, grouped": {"lengths": [37, 24, 30], "g": 2},
    "text last": {"lengths": [33, 40], "layout": "text last", "g": 3},
}
WINDOW = 4


def chunks(is_image, length, images):
    """The chunk of each token: a tuple that no other chunk has, ascending."""
    runs, found = [], []
    for i, image in enumerate(is_image):
        if i == 0 or image != is_image[i - 1]:
            runs.append([])
        runs[-1].append(i)
    for number, run in enumerate(runs):
        for spot, i in enumerate(run):
            if images == "text":
                found.append((i // length,))
            elif not is_image[i]:
                found.append((number, i // length))
            elif images == "runs" or (side := math.isqrt(len(run))) ** 2 != len(run):
                found.append((number, spot // length))
            elif images == "rows":
                found.append((number, spot // side))
            else:
                edge = math.isqrt(length)
                found.append((number, spot // side // edge, spot % side // edge))
    return found


def kept(scores, chunk, tokens, window, shared, total):
    """Positions of every head, from its scores of the tokens before the window."""
    t = len(chunk)
    names = sorted(set(chunk[: t - window]))
    members = {c: [i for i in range(t - window) if chunk[i] == c] for c in names}
    found = []
    for head in range(len(scores)):
        voters = range(len(scores)) if shared else [head]
        worth = {}
        for c in names:
            said = [scores[h][i] for h in voters for i in members[c]]
            worth[c] = sum(said) / (1 if total == "sum" else len(said))
        room, mine = tokens - window, list(range(t - window, t))
        for c in sorted(names, key=lambda c: (-worth[c], c)):
            if len(members[c]) <= room:
                mine += members[c]
                room -= len(members[c])
            else:
                mine += [members[c][i] for i in top([scores[head][i] for i in members[c]], room)]
                break
        found.append(sorted(mine))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("images", ["text", "runs", "rows", "blocks"])
@pytest.mark.parametrize(("shared", "total"), [(True, "mean"), (True, "sum"), (False, "mean")])
@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
def test_chunks_are_those_of_the_transcription(prompt, shared, total, images, dtype):
    given = visual(**prompt)
    given = given._replace(layers=[tuple(x.to(dtype) for x in qkv) for qkv in given.layers])

    def literal(layer, row, tokens):
        q, k, _ = given.alone(layer, row)
        paid = attention(q, k)[:, -WINDOW:].mean(1)
        by_head = paid.view(k.shape[0], -1, paid.shape[1]).mean(1).tolist()
        chunk = chunks(given.images[row], 5, images)
        return kept(by_head, chunk, tokens, WINDOW, shared, total)

    policy = foveate.chunkkv(
        budget=16, length=5, window=WINDOW, shared=shared, total=total, images=images
    )
    assert_keeps(policy, given, literal)


def test_rows_and_blocks_of_a_square_image_are_those_of_its_grid():
    image = torch.full((1, 2, 20), -1)
    image[..., 2:18] = 0
    spot = torch.where(image == 0, torch.arange(20) - 2, -1)
    slots = random_layer((20,), image=image, spot=spot).slots
    rows, blocks = (chunks_of(slots, 5, how)[0, 0] - 1 for how in ("rows", "blocks"))
    assert rows.tolist() == [-1] * 2 + [i // 4 for i in range(16)] + [4] * 2
    square = [0, 0, 1, 1] * 2 + [2, 2, 3, 3] * 2
    assert blocks.tolist() == [-1] * 2 + square + [4] * 2


def test_without_a_window_it_keeps_what_kvpress_keeps_of_any_score():
    """``ChunkKVPress(KnormPress(0.5), chunk_length=7)``: half of the chunks, all heads the same."""
    given = visual([45], h=3, layout="text", seed=4)
    _, k, _ = given.alone(0, 0)
    scores = -k.norm(dim=-1).sum(0)
    worth = torch.stack([chunk.mean() for chunk in scores.split(7)])
    best = worth.topk(len(worth) // 2).indices.tolist()
    expected = sorted(i for i in range(45) if i // 7 in best)
    policy = foveate.Policy(
        score=KeyNorm(),
        budget=foveate.stages.budget.Uniform(amount=len(expected)),
        select=BestChunks(recent=0, length=7),
    )
    (found,) = given.keeps(policy)
    assert sets(found) == [expected] * 3


@pytest.mark.parametrize("spec", ["knorm+chunkkv", "adakv+chunkkv", "h2o+chunkkv", "mixkv+chunkkv"])
def test_any_score_and_any_budget_go_with_chunks(spec):
    given = visual([60, 41], g=2, depth=2)
    policy = foveate.policy(f"{spec}:budget=14,window=4,length=6")
    for row in given.rows():
        assert sum(int(one.counts[row].sum()) for one in given.keeps(policy)) == 14 * 2 * 2
