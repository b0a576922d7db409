"""LLaVA-1.5 and MobileVLM V2 in their authors' layouts.

LLaVA-1.5: ``LlavaLlamaForCausalLM``, haotian-liu/LLaVA. MobileVLM V2: ``MobileLlamaForCausalLM``,
Meituan-AutoML/MobileVLM, which differs in the projector.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor

from foveate.errors import UnsupportedModel
from foveate.models import MobileVLMConfig, MobileVLMForConditionalGeneration
from foveate_lab.convert import clip, templates, tokens
from foveate_lab.convert import sentencepiece as sp
from foveate_lab.convert.facts import ConfigFacts, llama
from foveate_lab.convert.plan import ConversionPlan
from foveate_lab.convert.rules import WeightRule, extended
from foveate_lab.convert.weights import names

IMAGE = "<image>"
_GRID = 12  # tokens per side of an image in MobileVLM V2; fixed in its code, not its configuration
_TEXT = (
    WeightRule(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq", ()),
    WeightRule(r"model\.(layers|norm)\.(.*)", (r"model.language_model.\1.\2",)),
)


def plan_llava(facts: ConfigFacts, folder: Path, vision: Path | None) -> ConversionPlan:
    """Plan the conversion of a LLaVA-1.5.

    Raises:
        UnsupportedModel: an older or newer LLaVA, or a tower other than CLIP.
        ModelNotFound: a file is missing or damaged.
        InvalidInput: a missing entry in config.json.
    """
    facts.must_be("mm_projector_type", "mlp2x_gelu")
    projector = (
        WeightRule(r"model\.mm_projector\.0\.(.*)", (r"model.multi_modal_projector.linear_1.\1",)),
        WeightRule(r"model\.mm_projector\.2\.(.*)", (r"model.multi_modal_projector.linear_2.\1",)),
    )
    model = LlavaForConditionalGeneration
    return _plan(facts, folder, vision, projector, model=model, config=LlavaConfig)


def plan_mobilevlm(facts: ConfigFacts, folder: Path, vision: Path | None) -> ConversionPlan:
    """Plan the conversion of a MobileVLM V2. Raises as `plan_llava`, also for version 1."""
    facts.must_be("mm_projector_type", "ldpnetv2")
    at = "model.multi_modal_projector."
    projector = (
        WeightRule(r"model\.mm_projector\.mlp\.mlp\.0\.(.*)", (rf"{at}linear_1.\1",)),
        WeightRule(r"model\.mm_projector\.mlp\.mlp\.2\.(.*)", (rf"{at}linear_2.\1",)),
        WeightRule(r"model\.mm_projector\.peg\.peg\.0\.(.*)", (rf"{at}positions.\1",)),
    )
    model = MobileVLMForConditionalGeneration
    return _plan(facts, folder, vision, projector, model=model, config=MobileVLMConfig, grid=_GRID)


def _plan(
    facts: ConfigFacts,
    folder: Path,
    vision: Path | None,
    projector: tuple[WeightRule, ...],
    *,
    model: Any,
    config: Any,
    grid: int | None = None,
) -> ConversionPlan:
    for name in ("mm_use_im_start_end", "mm_use_im_patch_token"):
        facts.must_be(name, False, None)
    facts.must_be("mm_vision_select_feature", "patch", None)
    tower = str(facts.get("mm_vision_tower"))
    sizes: Any = clip.config(tower, vision)
    tokenizer = tokens.llama(sp.tokenizer(folder), folder, (IMAGE,))
    image_id = tokenizer.convert_tokens_to_ids(IMAGE)
    rows = max(facts.number("vocab_size"), image_id + 1)
    side = grid or sizes.image_size // sizes.patch_size
    return ConversionPlan(
        model=model,
        config=config(
            vision_config=sizes,
            text_config=llama(facts, rows),
            image_token_index=image_id,
            image_seq_length=side * side,
            vision_feature_layer=facts.get("mm_vision_select_layer", -2),
            dtype=facts.get("torch_dtype"),
            **({"projector_grid": grid} if grid else {}),
        ),
        processor=LlavaProcessor(  # type: ignore[no-untyped-call]
            image_processor=clip.image_processor(sizes, vision, clip.pads(facts)),
            tokenizer=tokenizer,
            patch_size=sizes.image_size // side,  # pixels per side of a token
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,  # CLIP's class token, which "default" drops
            image_token=IMAGE,
            chat_template=templates.vicuna(IMAGE),
        ),
        rules=(*_text(rows), *projector, *clip.rules()),
        sources=_sources(folder, vision, tower),
        generation=tokens.ends(tokenizer),
    )


def _text(rows: int) -> tuple[WeightRule, ...]:
    embeddings = extended(rows)
    return (
        *_TEXT,
        WeightRule(
            r"model\.embed_tokens\.weight",
            ("model.language_model.embed_tokens.weight",),
            embeddings,
        ),
        WeightRule(r"lm_head\.weight", ("lm_head.weight",), embeddings),
    )


def _sources(folder: Path, vision: Path | None, tower: str) -> tuple[Path, ...]:
    """Return the directories of weights: the tower's own only if the model's files lack it."""
    if any(name.startswith("model.vision_tower.") for name in names(folder)):
        return (folder,)
    if vision is None:
        raise UnsupportedModel(
            f"{str(folder)!r} does not hold its vision tower, {tower}. Download that too, and give "
            "its directory: --vision DIR."
        )
    return folder, vision
