"""CLIP tower of LLaVA-1.5 and MobileVLM, stored in the model's weights or in its own directory."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import CLIPVisionConfig, CLIPVisionModel
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.utils.constants import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from foveate.errors import UnsupportedModel
from foveate_lab.convert.facts import ConfigFacts, read_facts
from foveate_lab.convert.rules import WeightRule
from foveate_lab.convert.weights import json_file

_LARGE = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "patch_size": 14,
    "projection_dim": 768,
}
KNOWN: dict[str, dict[str, Any]] = {
    "openai/clip-vit-large-patch14-336": _LARGE | {"image_size": 336},
    "openai/clip-vit-large-patch14": _LARGE | {"image_size": 224},
}
"""Towers whose sizes are known without a directory."""
PARTS = r"(?:vision_model\.)?((?:embeddings|pre_layrnorm|encoder|post_layernorm)\..*)"


def config(name: str, folder: Path | None) -> CLIPVisionConfig:
    """Return the tower's configuration, read from its directory or known by its name.

    Raises:
        UnsupportedModel: an unknown name without a directory, or another model in the directory.
        ModelNotFound: no configuration in the directory.
    """
    if folder is not None:
        facts = read_facts(folder)
        sizes = facts.get("vision_config", facts.entries)
        facts.must_be("model_type", "clip", "clip_vision_model")
        return CLIPVisionConfig(**{k: v for k, v in sizes.items() if k not in _NOT_SIZES})
    if name not in KNOWN:
        raise UnsupportedModel(
            f"the sizes of the vision tower {name!r} are not known. Give its directory, with its "
            "config.json: --vision DIR."
        )
    return CLIPVisionConfig(**KNOWN[name])


_NOT_SIZES = ("model_type", "architectures", "transformers_version", "torch_dtype", "dtype")


def image_processor(sizes: CLIPVisionConfig, folder: Path | None, square: bool) -> Any:
    """Return CLIP's image processor; ``square`` pads images to squares, as some models were
    trained.
    """
    preprocessor = json_file(folder / "preprocessor_config.json") if folder else {}
    side: Any = sizes.image_size
    return LlavaImageProcessorPil(
        size={"shortest_edge": side},
        crop_size={"height": side, "width": side},
        image_mean=preprocessor.get("image_mean", OPENAI_CLIP_MEAN),
        image_std=preprocessor.get("image_std", OPENAI_CLIP_STD),
        do_pad=square,
    )


def pads(facts: ConfigFacts) -> bool:
    """Check if images are padded to squares. Raises UnsupportedModel if they are cut into tiles."""
    aspect = facts.must_be("image_aspect_ratio", "pad", "square", None)
    return bool(aspect == "pad")


def rules() -> tuple[WeightRule, ...]:
    """Return the rules for the tower's weights, in the model's files or in its own directory."""
    at = rf"model.vision_tower.{_prefix()}\1"
    return (
        WeightRule(r".*position_ids", ()),
        WeightRule(rf"model\.vision_tower\.vision_tower\.{PARTS}", (at,)),
        WeightRule(PARTS, (at,)),
        WeightRule(r"text_model\..*|visual_projection\..*|text_projection\..*|logit_scale", ()),
    )


@cache
def _prefix() -> str:
    """Return the prefix of the tower's weights in the installed release of transformers."""
    tiny: dict[str, Any] = {
        "hidden_size": 4,
        "intermediate_size": 4,
        "num_attention_heads": 1,
        "image_size": 4,
    }
    with torch.device("meta"):
        names = CLIPVisionModel(CLIPVisionConfig(**tiny, num_hidden_layers=1)).state_dict()
    return "vision_model." if any(name.startswith("vision_model.") for name in names) else ""
