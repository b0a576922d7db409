"""A tiny random Qwen2-VL with a processor that needs no torchvision, and drawn frames."""

from __future__ import annotations

import functools

import pytest
import torch
from PIL import Image
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration, Qwen2VLImageProcessorPil

from tests.serving.tiny import QWEN_IMAGE, QWEN_TOKENS, bytes_tokenizer
from tests.zoo.limits import readers_limit

SIDE = 28  # pixels of a visual token's side
RANGE = 4096


class Processor:
    """What Qwen2-VL's processor does with images and texts."""

    def __init__(self):
        self.tokenizer = bytes_tokenizer(
            QWEN_TOKENS, QWEN_IMAGE, eos_token="<|im_end|>", pad_token="<|endoftext|>"
        )
        self.images = Qwen2VLImageProcessorPil(min_pixels=SIDE**2, max_pixels=SIDE**2 * 16)

    def apply_chat_template(self, messages, tokenize=False, **options):
        return self.tokenizer.apply_chat_template(messages, tokenize=tokenize, **options)

    def __call__(self, text, images=(), return_tensors="pt", **options):
        pixels = self.images(images=list(images), return_tensors="pt") if len(images) else {}
        pad, (text,) = "<|image_pad|>", text
        for grid in pixels.get("image_grid_thw", []):
            text = text.replace(pad, "<pad>" * (int(grid.prod()) // 4), 1)
        text = text.replace("<pad>", pad)
        ids = self.tokenizer([text], return_tensors="pt", **options)["input_ids"]
        types = (ids == self.tokenizer.convert_tokens_to_ids(pad)).int()
        return {"input_ids": ids, "mm_token_type_ids": types, **pixels}


@functools.cache
def processor() -> Processor:
    try:
        return Processor()
    except ImportError:
        if not (reason := readers_limit()):
            raise
        pytest.skip(reason)


def config(hidden=64, layers=3, heads=4, kv_heads=2, inner=96, vision=32, **text):
    ids = processor().tokenizer.convert_tokens_to_ids(list(QWEN_TOKENS))
    end, _, turn, first, last, _, image, video = ids
    d = hidden // heads
    sections = [d // 8, 3 * d // 16, d // 2 - d // 8 - 3 * d // 16]
    return Qwen2VLConfig(
        text_config={
            "vocab_size": len(processor().tokenizer),
            "hidden_size": hidden,
            "intermediate_size": inner,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "max_position_embeddings": RANGE,
            "rope_parameters": {
                "rope_type": "default",
                "mrope_section": sections,
                "rope_theta": 10000.0,
            },
            "initializer_range": 0.2,
            "bos_token_id": end,
            "eos_token_id": turn,
            "pad_token_id": end,
            **text,
        },
        vision_config={
            "depth": 1,
            "embed_dim": vision,
            "hidden_size": hidden,
            "num_heads": 2,
            "mlp_ratio": 2,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "in_channels": 3,
        },
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=first,
        vision_end_token_id=last,
    )


@functools.cache
def model():
    torch.manual_seed(0)
    return Qwen2VLForConditionalGeneration(config()).float().eval()


def frame(number: int, width: int = 2 * SIDE, height: int = 2 * SIDE) -> Image.Image:
    """A drawn frame: noise of its own on a slow wave of colour."""
    generator = torch.Generator().manual_seed(number)
    noise = torch.randint(0, 128, (height, width, 3), generator=generator)
    wave = 64 + 63 * torch.sin(torch.tensor([0.1, 0.13, 0.17]) * number)
    return Image.fromarray((noise + wave).to(torch.uint8).numpy())
