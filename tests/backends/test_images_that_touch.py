"""Images without a token between them are images of their own."""

import pytest
import torch

import foveate
from foveate.hf.layer.support import known_state
from foveate.hf.model.modality import image_starts
from tests import zoo

POLICY = "snapkv:budget=100%,window=4"


def touching(name, lengths, images=3):
    """A prompt whose images stand side by side behind its first tokens, and each image's tokens."""
    inputs = zoo.prompt(name, lengths=lengths, images=images)
    ids = inputs["input_ids"]
    visual = ids == zoo.IMAGE
    runs = (visual & ~torch.nn.functional.pad(visual, (1, 0))[:, :-1]).cumsum(-1)
    sizes = [
        [int((seen & (run == number)).sum()) for number in range(1, images + 1)]
        for seen, run in zip(visual, runs, strict=True)
    ]
    moved = {}
    for key, value in inputs.items():
        if value.shape == ids.shape:
            rows = []
            for row, seen, mask in zip(value, visual, inputs["attention_mask"], strict=True):
                start = int((mask == 0).sum()) + 3
                text = row[~seen]
                rows.append(torch.cat([text[:start], row[seen], text[start:]]))
            value = torch.stack(rows)
        moved[key] = value
    return moved, sizes


@pytest.mark.parametrize("read", ["generate", "prefill", "chunks"])
@pytest.mark.parametrize("name", ["llava", "paligemma", "llava_next", "llava_onevision"])
def test_three_images_that_touch_are_three(name, read):
    model = zoo.build(name)
    inputs, sizes = touching(name, (170, 190))
    with foveate.compress(model, POLICY) as session:
        if read == "prefill":
            session.prefill(**inputs)
        else:
            how = {"prefill_chunk_size": 16} if read == "chunks" else {}
            if how and (zoo.chunks_limit(name) or name == "paligemma"):
                pytest.skip("stock cannot read it in chunks")
            model.generate(**inputs, max_new_tokens=2, **how)
        image, spot = known_state(session.cache).images()
    for row, expected in zip(image, sizes, strict=True):
        assert [int((row == i).sum()) for i in range(len(expected))] == expected
    assert int(spot.max()) + 1 == max(max(each) for each in sizes)


def test_grids_tell_images_apart_where_a_model_takes_them_side_by_side():
    """Of Qwen-VL a processor puts tokens around each; without them its own positions fail."""
    config = zoo.build("qwen2_vl").config
    ids = torch.tensor([[50, *[zoo.IMAGE] * 10, 50, 50], [50, 50, *[zoo.IMAGE] * 9, 50, 50]])
    grids = torch.tensor([[1, 4, 6], [1, 4, 4], [1, 6, 6]])  # 6, 4 and 9 tokens
    starts = image_starts(config, ids, {"image_grid_thw": grids})
    assert starts.nonzero().tolist() == [[0, 1], [0, 7], [1, 2]]
    assert image_starts(config, ids, {"image_grid_thw": grids[:2]}) is None
