"""Tiny random models with the processors of their families: every piece of text and image goes the
way that it goes in a published model, worded as its chat template words it.

Processors are transformers' own. Readers of videos need torchvision, so Qwen-VL's have one that
stands in, and others none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    CLIPImageProcessorPil,
    Gemma3ImageProcessorPil,
    Gemma3Processor,
    InternVLProcessor,
    LlavaNextImageProcessorPil,
    LlavaNextProcessor,
    LlavaOnevisionImageProcessorPil,
    LlavaOnevisionProcessor,
    LlavaProcessor,
    PreTrainedModel,
    ProcessorMixin,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessorPil,
    Qwen2VLProcessor,
    Qwen3VLProcessor,
    TokenizersBackend,
)
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.video_utils import VideoMetadata

from tests import zoo
from tests.zoo.family import AFTER_IMAGE, BEFORE_IMAGE, VIDEO
from tests.zoo.limits import readers_limit, second_turn_limit
from tests.zoo.vision_models import PATCH, PINPOINTS

BOS, UNKNOWN, OPENS, CLOSES = 1, 2, 7, 8

# How published templates word a conversation; "IMAGE" and "VIDEO" are what stands for one.
COLON = """\
{%- for m in messages -%}
{%- if m.role != 'system' -%}{{- m.role.upper() + ': ' -}}{%- endif -%}
{%- for c in m.content | selectattr('type', 'equalto', 'image') -%}{{- 'IMAGE\\n' -}}{%- endfor -%}
{%- for c in m.content | selectattr('type', 'equalto', 'text') -%}{{- c.text + ' ' -}}{%- endfor -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'ASSISTANT:' -}}{%- endif -%}"""
INST = """\
{{- '<s>' -}}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}{{- ' ' + m.content[0].text + '</s>' -}}
{%- else -%}
{{- '[INST] ' -}}
{%- for c in m.content -%}{{- 'IMAGE\\n' if c.type == 'image' else c.text -}}{%- endfor -%}
{{- ' [/INST]' -}}
{%- endif -%}
{%- endfor -%}"""
CHATML = """\
{%- if FIRST and messages[0].role != 'system' -%}
{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}
{%- endif -%}
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\\n' -}}
{%- if m.content is string -%}{{- m.content -}}
{%- else -%}
{%- for c in m.content -%}
{{- {'image': 'IMAGE', 'video': 'VIDEO'}.get(c.type) or c.text -}}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""
SPACED = """\
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + ' ' -}}
{%- for c in m.content if c.type == 'image' -%}{{- 'IMAGE' -}}{%- endfor -%}
{%- for c in m.content if c.type == 'text' -%}{{- '\\n' + c.text -}}{%- endfor -%}
{{- '<|im_end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""
TURNS = """\
{{- bos_token -}}
{%- for m in messages -%}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' -}}
{%- if m.content is string -%}{{- m.content | trim -}}
{%- else -%}
{%- for c in m.content -%}{{- 'IMAGE' if c.type == 'image' else c.text | trim -}}{%- endfor -%}
{%- endif -%}
{{- '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}"""


class Talker(NamedTuple):
    """A model, its processor, and the token with which its answers end."""

    model: PreTrainedModel
    processor: Any
    eos: int


def tokenizer(special: dict[int, str], begins: bool = False, **named: str) -> TokenizersBackend:
    """One token for every character of ASCII, and special ones; ``begins`` puts one in front."""
    from tokenizers.processors import TemplateProcessing

    special = {zoo.PAD: "<pad>", BOS: "<s>", UNKNOWN: "<unk>", **special}
    letters = [{32: "\u0120", 10: "\u010a"}.get(code, chr(code)) for code in (*range(32, 127), 10)]
    names = special | {zoo.TEXT_FROM + index: letter for index, letter in enumerate(letters)}
    words = {names.get(index, f"[{index}]"): index for index in range(zoo.VOCAB)}
    backend = Tokenizer(models.BPE(vocab=words, merges=[], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(special.values()))
    if begins:
        backend.post_processor = TemplateProcessing(
            single=f"{special[BOS]} $A", special_tokens=[(special[BOS], BOS)]
        )
    return TokenizersBackend(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token=special[BOS] if begins else None,
        unk_token="<unk>",
        eos_token=special[CLOSES],
        extra_special_tokens=named,
        padding_side="left",
    )


def llava() -> Any:
    special = {zoo.IMAGE: "<image>", CLOSES: "</s>"}
    return LlavaProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": 12}, crop_size={"height": 12, "width": 12}),
        tokenizer(special, begins=True, image_token="<image>"),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=COLON.replace("IMAGE", "<image>"),
    )


def llava_next() -> Any:
    eight = {"height": 8, "width": 8}
    special = {zoo.IMAGE: "<image>", CLOSES: "</s>"}
    return LlavaNextProcessor(
        LlavaNextImageProcessorPil(
            size={"shortest_edge": 8}, crop_size=eight, image_grid_pinpoints=PINPOINTS
        ),
        tokenizer(special, begins=True, image_token="<image>"),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=INST.replace("IMAGE", "<image>"),
    )


class FrameReader:
    """Stands in for Qwen-VL's reader of videos: frames become patches as images do, two at a time,
    of which the last is there twice where their number is odd.
    """

    temporal_patch_size = 2

    def __init__(self, images: Qwen2VLImageProcessorPil):
        self.images, self.merge_size = images, images.merge_size

    def __call__(
        self, videos: Any, video_metadata: Any, do_sample_frames: bool, **how: Any
    ) -> dict[str, Any]:
        assert not do_sample_frames
        each = [self._patches(list(frames)) for frames in videos]
        found = {
            "pixel_values_videos": torch.cat([pixels for pixels, _ in each]),
            "video_grid_thw": torch.tensor([grid for _, grid in each]),
        }
        told = [VideoMetadata(**one) for one in video_metadata]
        return found | ({"video_metadata": told} if how.get("return_metadata") else {})

    def _patches(self, frames: list[Any]) -> tuple[torch.Tensor, list[int]]:
        made = self.images(images=frames + frames[-1:] * (len(frames) % 2), return_tensors="pt")
        (_, high, wide), size = made["image_grid_thw"][0].tolist(), self.images.patch_size**2
        pixels = made["pixel_values"].view(-1, 2, high * wide, 3, 2, size)[..., 0, :]
        return pixels.permute(0, 2, 3, 1, 4).reshape(-1, 6 * size), [len(pixels), high, wide]


CHAT_TOKENS = {OPENS: "<|im_start|>", CLOSES: "<|im_end|>"}


def llava_onevision() -> Any:
    special = {zoo.IMAGE: "<image>", VIDEO: "<video>", **CHAT_TOKENS}
    return LlavaOnevisionProcessor(
        LlavaOnevisionImageProcessorPil(
            size={"height": 8, "width": 8}, image_grid_pinpoints=PINPOINTS
        ),
        tokenizer(special, image_token="<image>", video_token="<video>"),
        None,
        num_image_tokens=4,
        vision_feature_select_strategy="full",
        chat_template=SPACED.replace("IMAGE", "<image>"),
    )


def qwen(kind: type[ProcessorMixin], system: bool) -> Any:
    special = {
        zoo.IMAGE: "<|image_pad|>",
        VIDEO: "<|video_pad|>",
        BEFORE_IMAGE: "<|vision_start|>",
        AFTER_IMAGE: "<|vision_end|>",
        **CHAT_TOKENS,
    }
    image = "<|vision_start|><|image_pad|><|vision_end|>"
    words = CHATML.replace("FIRST", str(system).lower()).replace("IMAGE", image)
    images = Qwen2VLImageProcessorPil(
        patch_size=PATCH, size={"shortest_edge": 8 * 8, "longest_edge": 24 * 24}
    )
    return kind(
        images,
        tokenizer(special),
        FrameReader(images),
        chat_template=words.replace("VIDEO", image.replace("image", "video")),
    )


def internvl() -> Any:
    special = {
        zoo.IMAGE: "<IMG_CONTEXT>",
        VIDEO: "<video>",
        BEFORE_IMAGE: "<img>",
        AFTER_IMAGE: "</img>",
        **CHAT_TOKENS,
    }
    return InternVLProcessor(
        GotOcr2ImageProcessorPil(
            size={"height": 24, "width": 24}, crop_to_patches=True, max_patches=3
        ),
        tokenizer(
            special,
            start_image_token="<img>",
            end_image_token="</img>",
            context_image_token="<IMG_CONTEXT>",
            video_token="<video>",
        ),
        None,
        image_seq_length=9,
        chat_template=CHATML.replace("FIRST", "false").replace("IMAGE", "<IMG_CONTEXT>\\n"),
    )


def gemma3() -> Any:
    special = {
        BOS: "<bos>",
        zoo.IMAGE: "<image_soft_token>",
        BEFORE_IMAGE: "<start_of_image>",
        AFTER_IMAGE: "<end_of_image>",
        OPENS: "<start_of_turn>",
        CLOSES: "<end_of_turn>",
    }
    return Gemma3Processor(
        Gemma3ImageProcessorPil(size={"height": 24, "width": 24}),
        tokenizer(
            special,
            begins=True,
            image_token="<image_soft_token>",
            boi_token="<start_of_image>",
            eoi_token="<end_of_image>",
        ),
        image_seq_length=9,
        chat_template=TURNS.replace("IMAGE", "<start_of_image>"),
    )


PROCESSORS: dict[str, Callable[[], Any]] = {
    "llava": llava,
    "llava_next": llava_next,
    "llava_onevision": llava_onevision,
    "qwen2_vl": lambda: qwen(Qwen2VLProcessor, system=True),
    "qwen2_5_vl": lambda: qwen(Qwen2_5_VLProcessor, system=True),
    "qwen3_vl": lambda: qwen(Qwen3VLProcessor, system=False),
    "internvl": internvl,
    "gemma3": gemma3,
}


@cache
def talker(name: str) -> Talker:
    """A family's model, which all tests share, with its processor."""
    if reason := second_turn_limit(name, images=1):
        pytest.skip(reason)
    with mock.patch.object(ProcessorMixin, "check_argument_for_proper_class"):
        try:
            processor = PROCESSORS[name]()
        except ImportError:
            if not (reason := readers_limit()):
                raise
            pytest.skip(reason)
    return Talker(zoo.build(name), processor, CLOSES)
