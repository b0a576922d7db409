"""Tiny random models with the processors of their families: every piece of text and image goes the
way that it goes in a published model, worded as its chat template words it.

Processors are transformers' own. Those that ask for a reader of videos, which needs torchvision,
get none: no video is read here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple
from unittest import mock

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

from tests import zoo
from tests.zoo.family import AFTER_IMAGE, BEFORE_IMAGE, VIDEO
from tests.zoo.vision_models import PATCH, PINPOINTS

BOS, UNKNOWN, OPENS, CLOSES = 1, 2, 7, 8

# How published templates word a conversation; "IMAGE" is what stands for an image.
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
{%- for c in m.content -%}{{- 'IMAGE' if c.type == 'image' else c.text -}}{%- endfor -%}
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
    return kind(
        Qwen2VLImageProcessorPil(
            patch_size=PATCH, size={"shortest_edge": 8 * 8, "longest_edge": 24 * 24}
        ),
        tokenizer(special),
        None,
        chat_template=CHATML.replace("FIRST", str(system).lower()).replace("IMAGE", image),
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
    with mock.patch.object(ProcessorMixin, "check_argument_for_proper_class"):
        processor = PROCESSORS[name]()
    return Talker(zoo.build(name), processor, CLOSES)
