"""What ``foveate fit`` says of a video's size is what transformers' own processors make of one.

They need torchvision, which is here and not beside the other tests.
"""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    GotOcr2ImageProcessor,
    InternVLConfig,
    InternVLProcessor,
    InternVLVideoProcessor,
    LlavaOnevisionConfig,
    LlavaOnevisionVideoProcessor,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2VLConfig,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
    Qwen3VLConfig,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from foveate.memory import Request, Unknown
from foveate.memory.model import Bare
from foveate.memory.processors.inputs import Video, video
from tests.zoo.directory import tokenizer

KINDS: dict[str, tuple[Any, Any]] = {
    "qwen2_vl": (Qwen2VLConfig, Qwen2VLVideoProcessor),
    "qwen2_5_vl": (Qwen2_5_VLConfig, Qwen2VLVideoProcessor),
    "qwen3_vl": (Qwen3VLConfig, Qwen3VLVideoProcessor),
    "llava_onevision": (LlavaOnevisionConfig, LlavaOnevisionVideoProcessor),
    "internvl": (InternVLConfig, InternVLVideoProcessor),
}
NESTED, BESIDE, OF_IMAGES = (
    "processor_config.json",
    "video_preprocessor_config.json",
    ("preprocessor_config.json"),
)
SQUARE = {"size": {"height": 448, "width": 448}}
SETTINGS = {
    "qwen2_vl": {"min_pixels": 3136, "max_pixels": 100_000},
    "qwen2_5_vl": {"size": {"shortest_edge": 3136, "longest_edge": 12_845_056}},
    "qwen3_vl": {"size": {"shortest_edge": 4096, "longest_edge": 500_000}},
    "llava_onevision": {"size": {"height": 384, "width": 384}},
    "internvl": SQUARE,
}
CLIPS = ((8, 168, 112), (5, 1280, 720), (4, 37, 20), (2, 30, 900), (7, 56, 56))
"""Frames, width and height."""


class ConfigAlone(PreTrainedModel):
    """Nothing of a model but its config: all that sizes go by."""

    def __init__(self, config: PreTrainedConfig) -> None:
        nn.Module.__init__(self)
        self.config = config


def sized(family: str, folder: Path, count: int, width: int, height: int) -> Video:
    made = ConfigAlone(KINDS[family][0]())
    asked = Request(frames=count, seconds=30.0, size=(width, height))
    return video(Bare(family, made, torch.float32, "", folder), asked)


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("name", [NESTED, BESIDE, OF_IMAGES])
@pytest.mark.parametrize("family", KINDS)
def test_pixels_are_as_many_as_the_processors(
    family: str, name: str, clip: tuple[int, int, int], tmp_path: Path
) -> None:
    held: Any = SETTINGS[family]
    nested = {"video_processor": held, "processor_class": "any"}
    (tmp_path / name).write_text(json.dumps(nested if name == NESTED else held))
    processor = KINDS[family][1].from_pretrained(tmp_path)
    count, width, height = clip
    frames = np.zeros((count, height, width, 3), np.uint8)
    own = processor(videos=[frames], do_sample_frames=False, return_tensors="pt")
    counted = sized(family, tmp_path, *clip)
    assert counted.assumed == ""
    if "video_grid_thw" in own:
        assert counted.pixels["video_grid_thw"].tolist() == own["video_grid_thw"].tolist()
    pixels = own["pixel_values_videos"]
    pixels = pixels.flatten(0, 1) if family == "internvl" else pixels
    (mine,) = (value for name, value in counted.pixels.items() if "pixel" in name)
    assert mine.shape == pixels.shape


def test_without_a_file_limits_are_those_of_the_class(tmp_path: Path) -> None:
    for family in ("qwen2_vl", "qwen3_vl"):
        frames = np.zeros((6, 720, 1280, 3), np.uint8)
        own = KINDS[family][1]()(videos=[frames], do_sample_frames=False, return_tensors="pt")
        counted = sized(family, tmp_path, 6, 1280, 720)
        assert counted.pixels["video_grid_thw"].tolist() == own["video_grid_thw"].tolist()
        assert BESIDE in counted.assumed


def runs(ids: list[int], token: int) -> list[int]:
    """How many times the token stands in each of its runs."""
    return [len(list(some)) for one, some in groupby(ids) if one == token]


def test_qwen3_writes_a_run_of_tokens_for_each_pair_of_frames(tmp_path: Path) -> None:
    marks = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    text = tokenizer()
    text.add_special_tokens({"additional_special_tokens": marks})
    processor = Qwen3VLProcessor(Qwen2VLImageProcessor(), text, Qwen3VLVideoProcessor())
    told = {"fps": 1.0, "total_num_frames": 7, "frames_indices": list(range(7))}
    made = processor(
        text=["<|vision_start|><|video_pad|><|vision_end|>"],
        videos=[np.zeros((7, 112, 168, 3), np.uint8)],
        video_metadata=[told],
        do_sample_frames=False,
    )
    counted = sized("qwen3_vl", tmp_path, 7, 168, 112)
    grid = counted.pixels["video_grid_thw"][0]
    token = text.convert_tokens_to_ids("<|video_pad|>")
    assert runs(made["input_ids"][0], token) == [int(grid[1:].prod()) // 4] * counted.runs


def test_internvl_writes_a_run_of_tokens_for_each_frame(tmp_path: Path) -> None:
    text = tokenizer()
    marks = {"start_image_token": "<img>", "end_image_token": "</img>"}
    marks |= {"context_image_token": "<ctx>", "video_token": "<video>"}
    text.add_special_tokens({"additional_special_tokens": list(marks.values())})
    for name, mark in marks.items():
        setattr(text, name, mark)
        setattr(text, f"{name}_id", text.convert_tokens_to_ids(mark))
    text.context_image_token_id = text.convert_tokens_to_ids("<ctx>")
    reader = InternVLVideoProcessor(**SQUARE)
    processor = InternVLProcessor(GotOcr2ImageProcessor(**SQUARE), text, reader)
    made = processor(text=["<video> what"], videos=[np.zeros((5, 60, 80, 3), np.uint8)])
    counted = sized("internvl", tmp_path, 5, 80, 60)
    assert runs(made["input_ids"][0], text.context_image_token_id) == [256] * counted.runs
    assert made["pixel_values"].shape == counted.pixels["pixel_values"].shape


def test_other_models_and_other_settings_stay_unknown(tmp_path: Path) -> None:
    (tmp_path / BESIDE).write_text(json.dumps({"size": {"shortest_edge": 384}}))
    for family in KINDS:
        with pytest.raises(Unknown, match=r"not known for|is known here"):
            sized(family, tmp_path, 4, 64, 48)
