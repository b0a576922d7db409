"""InternVL-Chat 1.5 and relatives in their authors' layout (``InternVLChatModel``).

OpenGVLab/InternVL: InternViT with InternLM2 or a Llama such as Vicuna, converted to transformers'
InternVL.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import (
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLVisionConfig,
)
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.utils.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

from foveate.errors import InvalidInput, UnsupportedModel
from foveate.models import ImageSpanProcessor
from foveate_lab.convert import sentencepiece as sp
from foveate_lab.convert import templates, tokens
from foveate_lab.convert.facts import ConfigFacts, llama
from foveate_lab.convert.plan import ConversionPlan
from foveate_lab.convert.rules import WeightRule, grouped, thirds

IMAGE, START, END = "<IMG_CONTEXT>", "<img>", "</img>"
INTERN, LLAMA = "InternLM2ForCausalLM", "LlamaForCausalLM"
CHATML = ("internlm2-chat", "Hermes-2")
VICUNA = ("vicuna_v1.1",)
_TEXT, _EYE = "model.language_model.", "model.vision_tower."
_LAYER = r"language_model\.model\.layers\.(\d+)\."


def plan_internvl(facts: ConfigFacts, folder: Path, vision: Path | None) -> ConversionPlan:
    """Plan the conversion of an InternVL-Chat.

    Raises:
        UnsupportedModel: another text model, template or way to cut images.
        ModelNotFound: a file is missing or damaged.
        InvalidInput: a missing entry in config.json, or ``vision``: the tower is in the weights.
    """
    if vision is not None:
        raise InvalidInput("an InternVL includes its vision tower: leave --vision out.")
    text, eye = facts.part("llm_config"), facts.part("vision_config")
    kind = (text.get("architectures") or [None])[0]
    if kind not in (INTERN, LLAMA):
        raise UnsupportedModel(
            f"the text model in {text.where} is {kind!r}, and only {INTERN} and {LLAMA} can be "
            "converted."
        )
    facts.must_be("ps_version", "v2")  # v1 leaves the image transposed after the pixel shuffle
    template = facts.must_be("template", *CHATML, *VICUNA)
    config = _config(facts, text, eye)
    tokenizer = _tokenizer(folder)
    config.image_token_id = _token_id(tokenizer, IMAGE, folder)
    chat = template in CHATML
    return ConversionPlan(
        model=InternVLForConditionalGeneration,
        config=config,
        processor=ImageSpanProcessor(
            image_processor=_image_processor(facts, config),
            tokenizer=tokenizer,
            image_seq_length=config.image_seq_length,
            image_token=IMAGE,
            start_token=START,
            end_token=END,
            chat_template=(templates.intern if chat else templates.vicuna)(IMAGE),
        ),
        rules=(*_eye(eye), *(_internlm2(text) if kind == INTERN else _llama())),
        sources=(folder,),
        generation=tokens.ends(tokenizer, *(["<|im_end|>"] if chat else [])),
    )


def _config(facts: ConfigFacts, text: ConfigFacts, eye: ConfigFacts) -> InternVLConfig:
    side = facts.get("force_image_size") or eye.number("image_size")
    if side != eye.number("image_size"):
        raise UnsupportedModel(
            f"force_image_size in {facts.where} is {side}, and image_size of the vision tower is "
            f"{eye.number('image_size')}: its positions would have to be resized."
        )
    ratio = facts.get("downsample_ratio", 0.5)
    return InternVLConfig(
        vision_config=InternVLVisionConfig(
            hidden_size=eye.number("hidden_size"),
            intermediate_size=eye.number("intermediate_size"),
            num_hidden_layers=eye.number("num_hidden_layers"),
            num_attention_heads=eye.number("num_attention_heads"),
            attention_bias=bool(eye.get("qkv_bias", False)),
            use_qk_norm=bool(eye.get("qk_normalization", True)),
            norm_type=eye.must_be("norm_type", "rms_norm", "layer_norm", default="rms_norm"),
            hidden_act=eye.get("hidden_act", "gelu"),
            layer_norm_eps=eye.get("layer_norm_eps", 1e-6),
            image_size=(side, side),
            patch_size=(eye.number("patch_size"),) * 2,
        ),
        text_config=llama(text, text.number("vocab_size")),
        image_seq_length=int((side // eye.number("patch_size") * ratio) ** 2),
        downsample_ratio=ratio,
        vision_feature_layer=facts.get("select_layer", -1),
        tie_word_embeddings=False,
        dtype=facts.get("torch_dtype"),
    )


def _image_processor(facts: ConfigFacts, config: InternVLConfig) -> GotOcr2ImageProcessorPil:
    """Build a processor that cuts images into tiles and a thumbnail, like dynamic_preprocess."""
    tiles = bool(facts.get("dynamic_image_size", False))
    if tiles:
        facts.must_be("use_thumbnail", True)
    side = config.vision_config.image_size[0]  # type: ignore[union-attr]
    return GotOcr2ImageProcessorPil(
        size={"height": side, "width": side},
        image_mean=IMAGENET_DEFAULT_MEAN,
        image_std=IMAGENET_DEFAULT_STD,
        crop_to_patches=tiles,
        min_patches=facts.get("min_dynamic_patch", 1),
        max_patches=facts.get("max_dynamic_patch", 12),
    )


def _tokenizer(folder: Path) -> Any:
    return tokens.llama(sp.tokenizer(folder), folder)


def _token_id(tokenizer: Any, name: str, folder: Path) -> int:
    token = tokenizer.get_vocab().get(name)
    if token is None:
        raise InvalidInput(
            f"the tokenizer in {str(folder)!r} has no {name}. Download tokenizer_config.json and "
            "added_tokens.json as well."
        )
    return int(token)


def _eye(eye: ConfigFacts) -> tuple[WeightRule, ...]:
    layer, to = r"vision_model\.encoder\.layers\.(\d+)\.", rf"{_EYE}encoder.layer.\1."
    qkv = tuple(rf"{to}attention.{name}_proj.\2" for name in "qkv")
    project = "model.multi_modal_projector."
    return (
        WeightRule(r"vision_model\.embeddings\.class_embedding", (f"{_EYE}embeddings.cls_token",)),
        WeightRule(
            r"vision_model\.embeddings\.position_embedding",
            (f"{_EYE}embeddings.position_embeddings",),
        ),
        WeightRule(
            r"vision_model\.embeddings\.patch_embedding\.(.*)",
            (rf"{_EYE}embeddings.patch_embeddings.projection.\1",),
        ),
        WeightRule(rf"{layer}attn\.qkv\.(weight|bias)", qkv, thirds),
        WeightRule(rf"{layer}attn\.proj\.(.*)", (rf"{to}attention.projection_layer.\2",)),
        WeightRule(rf"{layer}attn\.([qk]_norm\..*)", (rf"{to}attention.\2",)),
        WeightRule(rf"{layer}norm1\.(.*)", (rf"{to}layernorm_before.\2",)),
        WeightRule(rf"{layer}norm2\.(.*)", (rf"{to}layernorm_after.\2",)),
        WeightRule(rf"{layer}ls([12])", (rf"{to}lambda_\2",)),
        WeightRule(rf"{layer}(mlp\..*)", (rf"{to}\2",)),
        WeightRule(r"mlp1\.0\.(.*)", (rf"{project}layer_norm.\1",)),
        WeightRule(r"mlp1\.1\.(.*)", (rf"{project}linear_1.\1",)),
        WeightRule(r"mlp1\.3\.(.*)", (rf"{project}linear_2.\1",)),
    )


def _llama() -> tuple[WeightRule, ...]:
    return (
        WeightRule(r".*rotary_emb\.inv_freq", ()),
        WeightRule(r"language_model\.model\.(.*)", (rf"{_TEXT}\1",)),
        WeightRule(r"language_model\.lm_head\.weight", ("lm_head.weight",)),
    )


def _internlm2(text: ConfigFacts) -> tuple[WeightRule, ...]:
    heads = text.number("num_attention_heads")
    kv_heads = text.get("num_key_value_heads") or heads
    to = rf"{_TEXT}layers.\1."
    qkv = tuple(rf"{to}self_attn.{name}_proj.\2" for name in "qkv")
    mlp = {"w1": "gate", "w2": "down", "w3": "up"}
    return (
        WeightRule(r".*rotary_emb\.inv_freq", ()),
        WeightRule(rf"{_LAYER}attention\.wqkv\.(.*)", qkv, grouped(kv_heads, heads // kv_heads)),
        WeightRule(rf"{_LAYER}attention\.wo\.(.*)", (rf"{to}self_attn.o_proj.\2",)),
        *(
            WeightRule(rf"{_LAYER}feed_forward\.{old}\.(.*)", (rf"{to}mlp.{new}_proj.\2",))
            for old, new in mlp.items()
        ),
        WeightRule(rf"{_LAYER}attention_norm\.(.*)", (rf"{to}input_layernorm.\2",)),
        WeightRule(rf"{_LAYER}ffn_norm\.(.*)", (rf"{to}post_attention_layernorm.\2",)),
        WeightRule(r"language_model\.model\.tok_embeddings\.(.*)", (rf"{_TEXT}embed_tokens.\1",)),
        WeightRule(r"language_model\.model\.norm\.(.*)", (rf"{_TEXT}norm.\1",)),
        WeightRule(r"language_model\.output\.weight", ("lm_head.weight",)),
    )
