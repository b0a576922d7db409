"""Random model in Qwen2-VL's shape, a processor without files, and random frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
)

SIDE = 28  # pixels per side of a visual token
START, END, PAD = "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", START, END, PAD, "<|video_pad|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}" + START + PAD + END + "{% else %}{{ c['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


class Processor:
    """Processor with one token per byte, and Qwen2-VL's images of at most 16 tokens."""

    def __init__(self) -> None:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        plain = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
        plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        plain.decoder = decoders.ByteLevel()
        plain.add_special_tokens(list(SPECIAL))
        self.tokenizer: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=plain, eos_token=SPECIAL[2], pad_token=SPECIAL[0]
        )
        self.tokenizer.chat_template = TEMPLATE
        self._images = Qwen2VLImageProcessorPil(min_pixels=SIDE**2, max_pixels=SIDE**2 * 16)

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Any:
        """Apply the tokenizer's chat template."""
        return self.tokenizer.apply_chat_template(messages, **options)

    def __call__(
        self, text: Sequence[str], images: Sequence[Image.Image] = (), **options: Any
    ) -> dict[str, Any]:
        """Tokenize one text, with a placeholder for each image."""
        pixels = dict(self._images(images=list(images), return_tensors="pt")) if images else {}
        pieces = text[0].split(PAD)
        counts = [int(grid.prod()) // 4 for grid in pixels.get("image_grid_thw", [])]
        filled = "".join(a + PAD * n for a, n in zip(pieces, [*counts, 0], strict=True))
        ids = self.tokenizer([filled], **{"return_tensors": "pt", **options})["input_ids"]
        types = (ids == self.id_of(PAD)).int()
        return {"input_ids": ids, "mm_token_type_ids": types, **pixels}

    def id_of(self, token: str) -> int:
        """Return the id of a special token."""
        return int(self.tokenizer.convert_tokens_to_ids(token))


def model(processor: Processor, **text: Any) -> Qwen2VLForConditionalGeneration:
    """Build a model with random weights in float32; ``text`` overrides the small language model."""
    shape = {"hidden_size": 64, "num_attention_heads": 4, **text}
    size = shape["hidden_size"] // shape["num_attention_heads"]
    axes = [size // 8, 3 * size // 16]
    rope = {"rope_type": "default", "mrope_section": [*axes, size // 2 - sum(axes)]}
    ids: dict[str, Any] = {
        f"{kind}_token_id": processor.id_of(f"<|{kind}_pad|>") for kind in ("image", "video")
    }
    config = Qwen2VLConfig(
        text_config={
            "vocab_size": len(processor.tokenizer),
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "rope_parameters": {**rope, "rope_theta": 10000.0},
            "initializer_range": 0.02 if shape["hidden_size"] > 256 else 0.2,
            "eos_token_id": processor.id_of("<|im_end|>"),
            "pad_token_id": processor.id_of("<|endoftext|>"),
            "bos_token_id": processor.id_of("<|endoftext|>"),
            **shape,
        },
        vision_config={
            "depth": 1,
            "embed_dim": 32,
            "hidden_size": shape["hidden_size"],
            "num_heads": 2,
            "mlp_ratio": 2,
        },
        vision_start_token_id=processor.id_of(START),
        vision_end_token_id=processor.id_of(END),
        **ids,
    )
    torch.manual_seed(0)
    model = Qwen2VLForConditionalGeneration(config)
    model.eval()  # type: ignore[no-untyped-call]
    return model


def frame(number: int, width: int = 2 * SIDE, height: int = 2 * SIDE) -> Image.Image:
    """Draw a frame of noise on a slow wave of colour."""
    generator = torch.Generator().manual_seed(number)
    noise = torch.randint(0, 128, (height, width, 3), generator=generator)
    wave = 64 + 63 * torch.sin(torch.tensor([0.1, 0.13, 0.17], dtype=torch.float32) * number)
    return Image.fromarray((noise + wave).to(torch.uint8).numpy())
