"""The demo model: SmolLM2-135M-Instruct with vision, a LlavaForConditionalGeneration.

A small Pixtral tower and LLaVA's projector, both trained for it, give one visual token for every
cell of 24 x 24 pixels; a low-rank update (LoRA) of the language model's attention is added to its
weights. ``weights/MODEL_CARD.md`` lists its abilities and limits; the recipe is in the repository's
``demo_model/training/``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForImageTextToText,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PixtralVisionConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.llava.modeling_llava import LlavaMultiModalProjector

from foveate.errors import ModelNotFound
from foveate_demo import smollm2
from foveate_demo.processor import IMAGE, MAX_ROWS, PATCH, DemoProcessor

NAME = "Foveate-Demo-0.14B"
WEIGHTS = Path(__file__).parent / "weights"


def load(
    dtype: torch.dtype = torch.float32,
) -> tuple[LlavaForConditionalGeneration, DemoProcessor]:
    """Load the demo model and its processor, on the CPU and in evaluation mode.

    The language model comes from :func:`smollm2.load`; the trained weights are in the package
    ``foveate-demo`` (14 MB), or in the repository. With both installed, nothing is downloaded.

    Args:
        dtype: dtype of all weights.

    Returns:
        The model, and the processor that turns text and images into its inputs.

    Raises:
        ModelNotFound: the language model or the trained weights are missing.
    """
    language, tokenizer = smollm2.load(dtype)
    config = llava_config(language.config, tokenizer.vocab[IMAGE])
    with torch.device("meta"):
        model: LlavaForConditionalGeneration = _build(AutoModelForImageTextToText, config)
    inner = model.model
    inner.vision_tower = _build(AutoModel, vision_config())
    inner.multi_modal_projector = LlavaMultiModalProjector(config)
    eye = _weights("eye.safetensors")
    for part in ("vision_tower", "multi_modal_projector"):
        begin = f"{part}."
        state = {k.removeprefix(begin): v for k, v in eye.items() if k.startswith(begin)}
        getattr(inner, part).load_state_dict(state)
    add_low_rank(language, _weights("lora.safetensors"))
    inner.language_model, model.lm_head = language.model, language.lm_head
    model.generation_config = language.generation_config
    model.to(dtype)  # type: ignore[arg-type]
    model.eval()  # type: ignore[no-untyped-call]
    return model, DemoProcessor(tokenizer)


def _build(kind: Any, config: PreTrainedConfig) -> Any:
    return kind.from_config(config, attn_implementation="sdpa")


def llava_config(text: PreTrainedConfig, image_token: int) -> LlavaConfig:
    """Return the configuration of the complete model, given the language model's."""
    return LlavaConfig(
        vision_config=vision_config(),
        text_config=text,
        image_token_index=image_token,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        tie_word_embeddings=True,
    )


def vision_config() -> PixtralVisionConfig:
    """Return the vision tower's configuration: six layers on patches of one cell."""
    return PixtralVisionConfig(
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_channels=3,
        image_size=PATCH * MAX_ROWS,
        patch_size=PATCH,
        hidden_act="silu",
        attention_dropout=0.0,
        rope_parameters={"rope_theta": 1000.0},
    )


@torch.no_grad()
def add_low_rank(language: PreTrainedModel, update: dict[str, Tensor]) -> None:
    """Add B A to a weight W of the language model for every pair "W.A" [r, in], "W.B" [out, r]."""
    for name in sorted(key.removesuffix(".A") for key in update if key.endswith(".A")):
        weight = language.get_parameter(name)
        a, b = update[f"{name}.A"].float(), update[f"{name}.B"].float()
        weight.data = (weight.float() + b @ a).to(weight.dtype)


def _weights(name: str) -> dict[str, Tensor]:
    path = WEIGHTS / name
    if not path.is_file():
        raise ModelNotFound(
            f"{path} is missing: the demo model's weights are not installed, or not whole. Run "
            "`pip install 'foveate[demo]'`, or train them as demo_model/training/README.md in the "
            "repository says."
        )
    with safe_open(path, framework="pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no mapping
