"""Qwen-VL and Qwen-VL-Chat in their authors' layout (``QWenLMHeadModel`` with a vision tower)."""

from __future__ import annotations

from pathlib import Path

from transformers import CLIPImageProcessorPil, Qwen2Config
from transformers.utils.constants import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from foveate.errors import InvalidInput
from foveate.models import (
    ImageSpanProcessor,
    QwenVLConfig,
    QwenVLForConditionalGeneration,
    QwenVLVisionConfig,
)
from foveate_lab.convert import bpe_ranks, templates, tokens
from foveate_lab.convert.facts import ConfigFacts
from foveate_lab.convert.plan import ConversionPlan
from foveate_lab.convert.rules import WeightRule, thirds, thirds_per_head
from foveate_lab.convert.weights import json_file

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
END, TURN, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
IMAGE, START, STOP = "<imgpad>", "<img>", "</img>"
SPECIAL = (
    *(END, TURN, TURN_END),
    *(f"<|extra_{number}|>" for number in range(205)),
    *("<ref>", "</ref>", "<box>", "</box>", "<quad>", "</quad>"),
    *(START, STOP, IMAGE),
)
_POSITIONS = 256  # rows of the vision tower's position table, for any image size
_HEAD = 128  # width of the resampler's heads
_TEXT, _EYE = "model.language_model.", "model.vision_tower."


def plan_qwen_vl(facts: ConfigFacts, folder: Path, vision: Path | None) -> ConversionPlan:
    """Plan the conversion of a Qwen-VL.

    Raises:
        UnsupportedModel: partial rotary embeddings, or biases where Qwen2 has none.
        ModelNotFound: a file is missing or damaged.
        InvalidInput: a missing entry in config.json, or ``vision``: the tower is in the weights.
    """
    if vision is not None:
        raise InvalidInput("a Qwen-VL includes its vision tower: leave --vision out.")
    facts.must_be("rotary_pct", 1.0)
    facts.must_be("no_bias", True)
    eye = _eye_config(facts.part("visual"))
    backend = bpe_ranks.tokenizer(folder / "qwen.tiktoken", PATTERN, SPECIAL)
    tokenizer = tokens.wrapped(backend, pad=END, eos_token=END)
    image_id = int(tokenizer.convert_tokens_to_ids(IMAGE))
    if tokenizer.convert_tokens_to_ids(START) != facts.part("visual").get("image_start_id"):
        raise InvalidInput(
            f"{START} is {tokenizer.convert_tokens_to_ids(START)} by qwen.tiktoken, but "
            f"image_start_id in {facts.where} is {facts.part('visual').get('image_start_id')}. "
            "Download both from the same repository."
        )
    chat = _chats(folder)
    return ConversionPlan(
        model=QwenVLForConditionalGeneration,
        config=QwenVLConfig(
            vision_config=eye,
            text_config=_text_config(facts),
            image_token_index=image_id,
            image_seq_length=eye.num_queries,
            dtype=facts.get("torch_dtype"),
        ),
        processor=ImageSpanProcessor(
            image_processor=_image_processor(eye.image_size),
            tokenizer=tokenizer,
            image_seq_length=eye.num_queries,
            image_token=IMAGE,
            start_token=START,
            end_token=STOP,
            chat_template=templates.qwen(chat),
        ),
        rules=(*_text(), *_eye(eye)),
        sources=(folder,),
        generation=tokens.ends(tokenizer, *([TURN_END, TURN] if chat else [])),
    )


def _chats(folder: Path) -> bool:
    """Check if the model was trained to chat."""
    name = "generation_config.json"
    config = ConfigFacts(json_file(folder / name), str(folder / name))
    return bool(config.must_be("chat_format", "chatml", "raw") == "chatml")


def _text_config(facts: ConfigFacts) -> Qwen2Config:
    heads = facts.number("num_attention_heads")
    return Qwen2Config(
        vocab_size=facts.number("vocab_size"),
        hidden_size=facts.number("hidden_size"),
        # Qwen counts gate and up projection together
        intermediate_size=facts.number("intermediate_size") // 2,
        num_hidden_layers=facts.number("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=facts.number("seq_length"),
        rms_norm_eps=facts.get("layer_norm_epsilon", 1e-6),
        rope_parameters={
            "rope_type": "default",
            "rope_theta": float(facts.get("rotary_emb_base", 10000)),
        },
        tie_word_embeddings=False,
    )


def _eye_config(visual: ConfigFacts) -> QwenVLVisionConfig:
    width, out = visual.number("width"), visual.number("output_dim")
    return QwenVLVisionConfig(
        hidden_size=width,
        intermediate_size=int(width * visual.get("mlp_ratio", 4.0)),
        num_hidden_layers=visual.number("layers"),
        num_attention_heads=visual.number("heads"),
        image_size=visual.number("image_size"),
        patch_size=visual.number("patch_size"),
        output_size=out,
        num_queries=visual.get("n_queries", 256),
        num_resampler_heads=out // _HEAD,
        num_positions=_POSITIONS,
    )


def _image_processor(side: int) -> CLIPImageProcessorPil:
    """Build a processor that stretches every image to a square."""
    return CLIPImageProcessorPil(
        size={"height": side, "width": side},
        do_center_crop=False,
        image_mean=OPENAI_CLIP_MEAN,
        image_std=OPENAI_CLIP_STD,
    )


def _text() -> tuple[WeightRule, ...]:
    layer, to = r"transformer\.h\.(\d+)\.", rf"{_TEXT}layers.\1."
    qkv = tuple(rf"{to}self_attn.{name}_proj.\2" for name in "qkv")
    # Qwen applies silu to w2, so w2 is the gate
    mlp = {"w1": "up_proj", "w2": "gate_proj", "c_proj": "down_proj"}
    return (
        WeightRule(r"transformer\.rotary_emb\.inv_freq|.*\.masked_bias", ()),
        WeightRule(rf"{layer}attn\.c_attn\.(weight|bias)", qkv, thirds),
        WeightRule(rf"{layer}attn\.c_proj\.(.*)", (rf"{to}self_attn.o_proj.\2",)),
        *(
            WeightRule(rf"{layer}mlp\.{old}\.(.*)", (rf"{to}mlp.{new}.\2",))
            for old, new in mlp.items()
        ),
        WeightRule(rf"{layer}ln_1\.(.*)", (rf"{to}input_layernorm.\2",)),
        WeightRule(rf"{layer}ln_2\.(.*)", (rf"{to}post_attention_layernorm.\2",)),
        WeightRule(r"transformer\.wte\.weight", (f"{_TEXT}embed_tokens.weight",)),
        WeightRule(r"transformer\.ln_f\.(.*)", (rf"{_TEXT}norm.\1",)),
        WeightRule(r"lm_head\.weight", ("lm_head.weight",)),
    )


def _eye(eye: QwenVLVisionConfig) -> tuple[WeightRule, ...]:
    visual = r"transformer\.visual\."
    block, to = rf"{visual}transformer\.resblocks\.(\d+)\.", rf"{_EYE}layers.\1."
    pool, at = rf"{visual}attn_pool\.", f"{_EYE}resampler."
    heads = thirds_per_head(eye.num_attention_heads)
    return (
        WeightRule(rf"{visual}conv1\.weight", (f"{_EYE}patches.weight",)),
        WeightRule(rf"{visual}positional_embedding", (f"{_EYE}positions",)),
        WeightRule(rf"{visual}ln_(pre|post)\.(.*)", (rf"{_EYE}norm_\1.\2",)),
        WeightRule(rf"{visual}proj", (f"{_EYE}projection.weight",), lambda tensor: [tensor.T]),
        WeightRule(rf"{block}attn\.in_proj\.(.*)", _qkv(rf"{to}attention.", r"\2"), heads),
        WeightRule(rf"{block}attn\.out_proj\.(.*)", (rf"{to}attention.out_proj.\2",)),
        WeightRule(rf"{block}ln_([12])\.(.*)", (rf"{to}norm_\2.\3",)),
        WeightRule(rf"{block}mlp\.c_fc\.(.*)", (rf"{to}fc1.\2",)),
        WeightRule(rf"{block}mlp\.c_proj\.(.*)", (rf"{to}fc2.\2",)),
        WeightRule(rf"{pool}pos_embed", (f"{at}positions",)),
        WeightRule(rf"{pool}query", (f"{at}queries",)),
        WeightRule(rf"{pool}kv_proj\.weight", (f"{at}kv_proj.weight",)),
        WeightRule(rf"{pool}ln_(q|kv)\.(.*)", (rf"{at}norm_\1.\2",)),
        WeightRule(rf"{pool}attn\.in_proj_(weight|bias)", _qkv(f"{at}attention.", r"\1"), thirds),
        WeightRule(rf"{pool}attn\.out_proj\.(.*)", (rf"{at}attention.out_proj.\1",)),
    )


def _qkv(at: str, leaf: str) -> tuple[str, ...]:
    return tuple(f"{at}{name}_proj.{leaf}" for name in "qkv")
