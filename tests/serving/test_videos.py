"""Videos as transformers' own processors take them, which need torchvision: it is here, and not
beside the other tests.
"""

import numpy as np
import pytest
import torch
from transformers import (
    LlavaOnevisionConfig,
    LlavaOnevisionImageProcessor,
    LlavaOnevisionProcessor,
    LlavaOnevisionVideoProcessor,
    Qwen2_5_VLConfig,
    Qwen2_5_VLProcessor,
    Qwen2VLConfig,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
    Qwen3VLConfig,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from foveate.data import Clip
from foveate.models.token_grids import image_tokens
from foveate.prompts.videos import pictures, video_inputs
from tests.zoo.directory import tokenizer

SEEN = "<|vision_start|>{}<|vision_end|>"
TEMPLATE = """{%- for message in messages -%}{%- for part in message['content'] -%}
{%- if part['type'] == 'video' -%}{{- 'VIDEO' -}}{%- else -%}{{- part['text'] -}}{%- endif -%}
{%- endfor -%}{%- endfor -%}{%- if add_generation_prompt -%}{{- 'assistant : ' -}}{%- endif -%}"""
FAMILIES = {
    "qwen2_vl": (Qwen2VLConfig, Qwen2VLProcessor, Qwen2VLVideoProcessor),
    "qwen2_5_vl": (Qwen2_5_VLConfig, Qwen2_5_VLProcessor, Qwen2VLVideoProcessor),
    "qwen3_vl": (Qwen3VLConfig, Qwen3VLProcessor, Qwen3VLVideoProcessor),
}
MARKS = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<video>"]


@pytest.fixture
def clip():
    """Eight frames of a film of 3 s, ten a second."""
    frames = np.arange(8, dtype=np.uint8)[:, None, None, None] * np.full(3, 30, np.uint8)
    times = np.round(np.linspace(0, 29, 8)) / 10
    return Clip(np.broadcast_to(frames, (8, 112, 168, 3)).copy(), times, 10.0, 3.0)


def words():
    made = tokenizer()
    made.add_special_tokens({"additional_special_tokens": MARKS})
    return made


def asked(processor, clip):
    parts = [{"type": "video"}, {"type": "text", "text": "what ?"}]
    text = processor.apply_chat_template([{"role": "user", "content": parts}], tokenize=False)
    return processor(text=[text], **video_inputs(processor, [clip]), return_tensors="pt")


@pytest.mark.parametrize("family", FAMILIES)
def test_qwen_is_told_the_frames_and_their_times(family, clip):
    config_class, kind, video = FAMILIES[family]
    template = TEMPLATE.replace("VIDEO", SEEN.format("<|video_pad|>"))
    text = words()
    processor = kind(
        image_processor=Qwen2VLImageProcessor(),
        tokenizer=text,
        video_processor=video(),
        chat_template=template,
    )
    inputs = asked(processor, clip)
    assert int(inputs["video_grid_thw"][0, 0]) == 4  # two frames each
    if family == "qwen2_5_vl":
        assert float(inputs["second_per_grid_ts"][0]) == pytest.approx(2 * 3.0 / 8)
    if family == "qwen3_vl":
        said = text.decode(inputs["input_ids"][0])
        means = clip.times.reshape(4, 2).mean(1)
        assert [said.count(f"<{mean:.1f} seconds>") for mean in means] == [1] * 4
    config = config_class(video_token_id=text.convert_tokens_to_ids("<|video_pad|>"))
    vision = inputs["input_ids"][0] == config.video_token_id
    shown, times = pictures([clip], [], inputs)
    assert times == clip.times[::2].tolist()
    found = image_tokens(vision, inputs, [one.size for one in shown], config, processor)
    assert len(found) == 4
    assert sum((one.indices for one in found), ()) == tuple(
        torch.nonzero(vision).flatten().tolist()
    )
    (grid,) = found[1].grids
    merged = inputs["video_grid_thw"][0, 1:] // 2
    assert [grid.rows, grid.columns] == merged.tolist()


def test_onevision_has_a_grid_for_each_frame_and_a_token_behind_them(clip):
    text = words()
    processor = LlavaOnevisionProcessor(
        image_processor=LlavaOnevisionImageProcessor(),
        tokenizer=text,
        video_processor=LlavaOnevisionVideoProcessor(size={"height": 384, "width": 384}),
        chat_template=TEMPLATE.replace("VIDEO", "<video>"),
        num_image_tokens=729,
        vision_feature_select_strategy="full",
        video_token="<video>",
    )
    inputs = asked(processor, clip)
    config = LlavaOnevisionConfig(video_token_id=text.convert_tokens_to_ids("<video>"))
    vision = inputs["input_ids"][0] == text.convert_tokens_to_ids("<video>")
    shown, times = pictures([clip], [], inputs)
    assert times == clip.times.tolist()
    found = image_tokens(vision, inputs, [one.size for one in shown], config, processor)
    assert [len(one.indices) for one in found] == [196] * 7 + [197]
    assert {(one.grids[0].rows, one.grids[0].columns) for one in found} == {(14, 14)}
