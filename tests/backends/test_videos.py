"""Videos: each frame counts as an image, and many of them are read within a fixed budget."""

import pytest
import torch

import foveate
from foveate.cache.pairs import GROWTH
from foveate.hf.layer.support import foveate_layers
from foveate.hf.model.internals import CACHE
from tests import census, zoo
from tests.conformance.compare import TOLERANCE
from tests.conformance.oracle import event_of, oracle

FAMILIES = (
    "qwen2_vl",
    "qwen3_vl",
    "internvl",
    "llava_onevision",
    "llava_next_video",
    "video_llava",
    "video_llama_3",
)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_frame_is_an_image_of_its_own(family):
    specimen = census.build(family)
    if not specimen.takes_video:  # InternVL's are images, one after the other
        inputs, frames = specimen.prompt((72, 80), images=2), 2
    else:
        inputs = specimen.prompt((72, 80), video=True)
        grid, pixels = inputs.get("video_grid_thw"), inputs.get("pixel_values_videos")
        frames = int(grid[0, 0]) if grid is not None else pixels.shape[1]
    with foveate.compress(specimen.model, "knorm:budget=50%") as session, torch.no_grad():
        specimen.model.generate(**inputs, max_new_tokens=1, do_sample=False)
    state = foveate_layers(session.cache)[0].state
    images, spots = state.images()
    for row in range(2):
        visual = images[row] >= 0
        sizes = torch.bincount(images[row][visual])
        assert len(sizes) == frames
        if family == "video_llama_3":  # what does not move is left out
            assert sizes[0] > sizes[1] > 0
        else:
            assert abs(int(sizes[-1] - sizes[0])) == (family == "llava_onevision")  # a line end
        assert spots[row][visual].tolist() == [i for size in sizes.tolist() for i in range(size)]


def test_64_frames_are_read_within_the_budget_and_a_chunk():
    model, budget, every = zoo.fresh("llava"), 60, 8
    frames = [zoo.prompt("llava", lengths=(12,), seed=seed) for seed in range(64)]
    policy = foveate.infinipotv(budget=budget, every=every)
    largest, events, logits = 0, [], []
    with foveate.compress(model, policy) as session, torch.no_grad():
        session.expect(64 * 12)
        cache = None
        for frame in frames:
            given = {**frame, "attention_mask": None}
            out = model(**given, **({} if cache is None else {CACHE: cache}))
            cache = out.past_key_values
            logits.append(out.logits[:, -1])
            layers = foveate_layers(cache)
            largest = max(largest, *(layer.pairs.longest for layer in layers))
            room = max(t.shape[2] for layer in layers for t in (layer.keys, layer.values))
            assert room <= budget + every + 12 + GROWTH
            events.append(event_of(cache, now=True))
        assert session.stats.seen == 64 * 12
        assert int(foveate_layers(cache)[0].state.images()[0].max()) == 63
        assert all(layer.pairs.longest <= budget for layer in layers)
    assert largest <= budget + every + 12
    with oracle(model, *events), torch.no_grad():
        cache = None
        for frame, ours in zip(frames, logits, strict=True):
            given = {**frame, "attention_mask": None}
            out = model(**given, **({} if cache is None else {CACHE: cache}))
            cache = out.past_key_values
            assert torch.allclose(out.logits[:, -1], ours, atol=TOLERANCE)
