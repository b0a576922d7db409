"""InfiniPot-V: against a literal reading, the authors' output, and the masked full cache."""

from __future__ import annotations

import pytest
import torch

import foveate
from foveate.cache.pairs import GROWTH
from foveate.errors import InvalidParameter
from foveate.hf.model.internals import CACHE
from tests import zoo
from tests.conformance.compare import GREEDY, TOLERANCE, difference
from tests.conformance.oracle import event_of, oracle
from tests.golden.vectors import load
from tests.pairs import by_turns


def cosine(a, b):
    return float(a @ b / (a.norm() * b.norm()))


def literal_head(k, v, vision, kept, frame, temporal, newest):
    """The kept places of one head: keys and values [n, d], whether each is visual."""
    text = [i for i, seen in enumerate(vision) if not seen]
    visual = [i for i, seen in enumerate(vision) if seen]
    frames = [visual[a : a + frame] for a in range(0, len(visual), frame)]
    new = frames[-max(1, int(len(frames) * newest)) :]
    old = frames[: -len(new)]
    novelty = {}
    for number, members in enumerate(new):
        novelty |= dict.fromkeys(members, 2 + number)
    for members in old:
        for place, i in enumerate(members):
            cosines = [cosine(k[i], k[other[place]]) for other in new if place < len(other)]
            novelty[i] = -sum(cosines) / len(cosines)
    places = kept - len(text)
    wanted = int(places * temporal)
    first = sorted(visual, key=lambda i: (-novelty[i], i))[:wanted]
    rest = sorted((i for i in visual if i not in first), key=lambda i: -float(v[i].norm()))
    return sorted([*text, *first, *rest[: places - wanted]])


@pytest.mark.parametrize("temporal", [0.0, 0.5, 0.8, 1.0])
@pytest.mark.parametrize(("frames", "newest"), [(8, 0.25), (5, 0.5), (3, 0.1)])
def test_what_is_kept_is_what_a_literal_reading_keeps(frames, newest, temporal):
    generator = torch.Generator().manual_seed(frames)
    frame, before, after = 6, 4, 5
    n = before + frames * frame + after
    q, k, v = (torch.randn(1, h, n, 8, generator=generator) for h in (4, 2, 2))
    vision = torch.zeros(1, n, dtype=torch.bool)
    vision[:, before : before + frames * frame] = True
    kept = before + after + 11
    policy = foveate.infinipotv(budget=kept, frame=frame, temporal=temporal, newest=newest)
    (found,) = foveate.compress_tensors(policy, [(q, k, v)], vision=vision)
    for head in range(2):
        expected = literal_head(
            k[0, head], v[0, head], vision[0].tolist(), kept, frame, temporal, newest
        )
        assert found.positions(0, head).tolist() == expected


def test_frames_that_are_images_are_those_of_a_video_of_such_frames():
    """Three images of four tokens each, with a word between them, as InternVL has its videos."""
    generator = torch.Generator().manual_seed(0)
    vision = torch.tensor([[0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 0]]).bool()
    q, k, v = (torch.randn(1, 1, 16, 8, generator=generator) for _ in range(3))
    policy = foveate.infinipotv(budget=11, temporal=0.9)
    (found,) = foveate.compress_tensors(policy, [(q, k, v)], vision=vision)
    expected = literal_head(k[0, 0], v[0, 0], vision[0].tolist(), 11, 4, 0.9, 0.25)
    assert found.positions(0, 0).tolist() == expected
    with pytest.raises(InvalidParameter, match="Leave frame out"):
        foveate.compress_tensors(policy.but(frame=4), [(q, k, v)], vision=vision)


def test_without_the_temporal_share_it_keeps_what_the_authors_code_keeps():
    golden, given = load("infinipotv_pool0_tar0.0")
    kept = given["system_size"] + given["compress_frame_num"] * given["token_per_frame"]
    n = golden["keys"].shape[-2]
    vision = torch.arange(n)[None] >= given["system_size"]
    policy = foveate.infinipotv(budget=kept, frame=given["token_per_frame"], temporal=0.0)
    layers = [(k, k, v) for k, v in zip(golden["keys"], golden["values"], strict=True)]
    found = foveate.compress_tensors(policy, layers, vision=vision)
    names = sorted(name for name in golden if name.startswith("kept_idx"))
    assert len(names) == len(layers)
    for name, one in zip(names, found, strict=True):
        for head, theirs in enumerate(golden[name]):
            assert one.positions(0, head).tolist() == theirs.tolist()


WHILE_READING = {
    "infinipotv": foveate.infinipotv(budget=20, every=5),
    "snapkv": foveate.policy(
        "snapkv:budget=16,window=4,when=over_budget(every=4,reading=true,answering=false)"
    ),
    "adakv, quantised": foveate.policy(
        "adakv:budget=16,window=4,when=over_budget(every=6,reading=true),"
        "store=kivi(group=1,residual=2)"
    ),
    "h2o": foveate.policy("h2o:budget=16,when=over_budget(every=3,reading=true)"),
}


def room_of(pairs):
    """Slots that are allocated for a head."""
    rest = getattr(pairs, "rest", pairs)
    return getattr(rest, "tail", rest)._k.shape[2]


@by_turns(
    policy=WHILE_READING,
    family=["llava", "qwen2_vl", "internvl", "llama"],
    lengths={"one": (61,), "padded": (40, 61)},
)
def test_reading_in_chunks_equals_the_full_cache_with_what_went_masked(family, lengths, policy):
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=lengths, images=0)
    if limit := zoo.chunks_limit(family):
        pytest.skip(limit)
    events, sizes, rooms = [], [], []

    def after(module, args, kwargs, output):
        cache = kwargs[CACHE]
        events.append(event_of(cache, now=True))
        sizes.append(max(layer.pairs.longest for layer in cache.layers))
        rooms.append(max(room_of(layer.pairs) for layer in cache.layers))

    with foveate.compress(model, policy) as session:
        hook = model.register_forward_hook(after, with_kwargs=True)
        ours = model.generate(**inputs, **GREEDY, prefill_chunk_size=7)
        hook.remove()
        assert session.stats.kept_tokens <= 20
    passes = -(-lengths[-1] // 7)
    assert max(sizes[:passes]) <= 20 + 6 + 7  # the budget, what it may outgrow it by, and a chunk
    assert rooms[0] == 7  # the first chunk's, not the prompt's
    assert max(rooms) <= 20 + 6 + 7 + GROWTH
    assert not all(bool(kept.all()) for kept in events[passes - 3].kept.values())
    with oracle(model, *events):
        theirs = model.generate(**inputs, **GREEDY, prefill_chunk_size=7)
    assert difference(ours, theirs) <= TOLERANCE


def test_a_prompt_in_one_piece_is_compressed_once_at_its_end():
    model, inputs = zoo.build("llava"), zoo.prompt("llava", lengths=(60,), images=3)
    with foveate.compress(model, foveate.infinipotv(budget=30, every=5)) as session:
        model.generate(**inputs, **GREEDY)
        assert [int(kept.max()) for kept in session.stats.kept] == [30] * 3
        held = {layer.pairs.longest for layer in session.cache.layers}
    assert held == {30 + GREEDY["max_new_tokens"] - 1}
