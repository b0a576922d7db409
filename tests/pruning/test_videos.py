"""What the methods for videos keep, against literal readings of their papers; and in streams."""

import math
from itertools import pairwise

import pytest
import torch

import foveate
from foveate.policies.pruning import EnteringTokens
from foveate.policies.spec import make_stage
from foveate.stages.video_frames import VideoShape, video_shapes
from foveate.stream import Stream
from tests import zoo
from tests.conformance.compare import GREEDY, TOLERANCE
from tests.stream import tiny
from tests.stream.test_stream import ASKED, full_cache, whole
from tests.stream.watching import logits_of, watched
from tests.zoo.family import AFTER_IMAGE, BEFORE_IMAGE, TEXT_FROM, VIDEO, VOCAB

from .compare import check_pruned, hidden_of
from .test_conversations import dropped_by, hidden_in

METHODS = ("evs", "vidcom2")
SIZES = ((6, 6, 6), (4, 4, 5))
"""Visual tokens of each row's images; the last of the second row ends a video by a token more."""


def entering(width=10, seed=0, sizes=SIZES):
    """Two rows: text, then frames with a token of text between them; the second row is padded."""
    draw = torch.Generator().manual_seed(seed)
    length = 2 + max(sum(row) + len(row) for row in sizes)
    pos = torch.full((len(sizes), length), -1)
    image, spot = pos.clone(), pos.clone()
    for row, frames in enumerate(sizes):
        column = length - sum(frames) - len(frames) - 2
        pos[row, column:] = torch.arange(length - column)
        column += 2
        for number, size in enumerate(frames):
            image[row, column : column + size] = number
            spot[row, column : column + size] = torch.arange(size)
            column += size + 1
    return EnteringTokens(
        layer=0,
        depth=4,
        hidden=torch.randn(len(sizes), length, width, generator=draw),
        pos=pos,
        image=image,
        spot=spot,
        visual_tokens=(image >= 0).sum(-1),
    )


def frames_of(tokens, row):
    """Columns and embeddings of each frame's tokens, without a token that ends the video."""
    last = int(tokens.image[row].max())
    size = min(int((tokens.image[row] == number).sum()) for number in range(last + 1))
    return [
        [
            (int(column), tokens.hidden[row, column].double())
            for column in (tokens.image[row] == number).nonzero()[:size, 0]
        ]
        for number in range(last + 1)
    ]


def ends_of_videos(tokens, row):
    inside = {column for frame in frames_of(tokens, row) for column, _ in frame}
    return [c for c in (tokens.image[row] >= 0).nonzero()[:, 0].tolist() if c not in inside]


def literal_evs(tokens, row, keep):
    """Section 3, with embeddings for pixels: the most changed tokens, and the first frame."""
    frames = frames_of(tokens, row)
    change = {column: math.inf for column, _ in frames[0]}
    for before, now in pairwise(frames):
        for (_, a), (column, b) in zip(before, now, strict=True):
            change[column] = 1 - float(a @ b / (a.norm() * b.norm()))
    count = max(len(frames[0]), int(keep * len(change)))
    return sorted(change, key=lambda column: -change[column])[:count]


def literal_vidcom2(tokens, row, keep):
    """Equations 1 to 5, token by token."""
    frames = frames_of(tokens, row)
    every = torch.stack([state for frame in frames for _, state in frame])
    quiet = every.var(0, unbiased=False).argsort()[: every.shape[1] // 2]
    unit = [[(c, x[quiet] / x[quiet].norm()) for c, x in frame] for frame in frames]
    video = torch.stack([x for frame in unit for _, x in frame]).mean(0)

    def like(x, mean):
        distance = float(((x - mean) ** 2).sum())
        return sum(math.exp(-distance / (2 * 2**power)) for power in range(-3, 2))

    interest = [-sum(like(x, video) for _, x in frame) / len(frame) for frame in unit]
    weights = [math.exp((x - max(interest)) / 0.01) for x in interest]
    kept = []
    for frame, weight in zip(unit, weights, strict=True):
        share = min(1.0, keep * (1 + weight / sum(weights) - 1 / len(frames)))
        mean = torch.stack([x for _, x in frame]).mean(0)
        score = {c: like(x, video) + like(x, mean) for c, x in frame}
        kept += sorted(score, key=score.get)[: max(1, round(share * len(frame)))]
    return kept


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.8])
@pytest.mark.parametrize(("name", "literal"), [("evs", literal_evs), ("vidcom2", literal_vidcom2)])
def test_what_goes_on_of_each_video(name, literal, keep):
    tokens = entering(seed=round(10 * keep))
    goes_on = make_stage(f"{name}_prune", {"keep": keep})(tokens).goes_on
    for row in range(len(SIZES)):
        expected = sorted([*literal(tokens, row, keep), *ends_of_videos(tokens, row)])
        assert goes_on[row].nonzero()[:, 0].tolist() == expected


@pytest.mark.parametrize("name", METHODS)
def test_everything_goes_on_at_100_percent(name):
    tokens = entering()
    assert torch.equal(make_stage(f"{name}_prune", {"keep": 1.0})(tokens).goes_on, tokens.vision)


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("name", METHODS)
def test_numbers_that_are_declared_beforehand_are_met_or_not_exceeded(name, keep):
    stage, tokens = make_stage(f"{name}_prune", {"keep": keep}), entering()
    for row, sizes in enumerate(SIZES):
        (declared,) = stage.counts(4, sizes)
        found = int(stage(tokens).goes_on[row].sum())
        assert found == declared if name == "evs" else found <= declared


def test_images_of_equal_sizes_in_a_row_are_a_video():
    assert video_shapes([6, 6, 7, 6, 4, 4]) == [
        VideoShape(3, 6, 1),
        VideoShape(1, 6, 0),
        VideoShape(2, 4, 0),
    ]
    assert video_shapes([]) == []


def filmed(family):
    """A prompt with three frames: images, or of Qwen-VL a video of 2 by 3 tokens a frame."""
    if not family.startswith("qwen"):
        return zoo.prompt(family, lengths=(70, 84), images=3)
    draw = torch.Generator().manual_seed(0)
    first, last = (torch.randint(TEXT_FROM, VOCAB, (1, 9), generator=draw) for _ in range(2))
    frames = [torch.full((1, 1), BEFORE_IMAGE), torch.full((1, 18), VIDEO)]
    ids = torch.cat([first, *frames, torch.full((1, 1), AFTER_IMAGE), last], dim=1)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": 2 * (ids == VIDEO).int(),
        "pixel_values_videos": torch.randn(72, 96, generator=draw),
        "video_grid_thw": torch.tensor([[3, 4, 6]]),
    }


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("family", ["llava", "internvl", "qwen2_vl", "qwen2_5_vl"])
def test_pruned_frames_equal_the_stock_model_with_these_hidden(name, family):
    policy = foveate.policy(f"{name}.prune(keep=50%)+snapkv:budget=60%,window=4")
    read = check_pruned(zoo.build(family), policy, filmed(family))
    if family.startswith("qwen"):  # one video of 18 tokens, of which EVS keeps half
        assert name != "evs" or int(read.hidden[0].sum()) == 9


@pytest.mark.parametrize("name", METHODS)
def test_all_frames_kept_are_bit_identical_to_the_stock_cache(name):
    model, inputs = zoo.build("qwen2_5_vl"), filmed("qwen2_5_vl")
    stock = model.generate(**inputs, **GREEDY)
    with foveate.compress(model, f"{name}.prune(keep=100%)+full"):
        ours = model.generate(**inputs, **GREEDY)
    assert all(torch.equal(a, b) for a, b in zip(ours.logits, stock.logits, strict=True))


@pytest.mark.parametrize("name", METHODS)
def test_a_stream_of_a_few_frames_at_a_time(name, monkeypatch):
    model, processor = tiny.model(), tiny.processor()
    chunks = [[tiny.frame(2 * number + i) for i in range(3)] for number in range(5)]
    stream = Stream(model, processor, f"{name}.prune(keep=40%)+infinipotv:budget=24", every=6)
    with (
        watched(monkeypatch, stream) as watch,
        logits_of(model) as ours,
        dropped_by(stream.policy.prune, lambda: 0) as dropped,
    ):
        for chunk in chunks:
            watch.note(stream.see(chunk).seen)
        answer = stream.ask("why", **ASKED)
    parts = whole(stream, chunks, "why")
    length = sum(part["input_ids"].shape[1] for part in parts)
    hidden = hidden_in(dropped, watch.events[0].kept, length)
    assert all(bool(columns.any()) for columns in hidden.values())
    theirs = full_cache(model, parts, answer.ids, watch.events, hidden=hidden)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=TOLERANCE, rtol=TOLERANCE)


def test_a_stream_of_single_frames_is_read_whole_with_one_warning(caplog):
    """EVS compares the frames of one call; the last frame of a video may be alone in its call."""
    model, processor = tiny.model(), tiny.processor()
    frames = [tiny.frame(number) for number in range(7)]
    plain = Stream(model, processor, "infinipotv:budget=400")
    alone = Stream(model, processor, "evs.prune(keep=40%)+infinipotv:budget=400")
    alone.see(frames[:2])
    dropped = int(hidden_of(alone._cache)[0].sum())
    assert dropped > 0
    plain.see(frames[:2])
    for number, frame in enumerate(frames[2:]):
        assert len(caplog.messages) == (number > 1)
        assert plain.see(frame).tokens - alone.see(frame).tokens == dropped
    (warning,) = caplog.messages
    assert "evs_prune" in warning
    assert "several at once" in warning
