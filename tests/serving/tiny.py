"""Tiny random models with eyes, as the folders that vLLM and transformers load."""

import json

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3ImageProcessor,
    Gemma3Processor,
    Gemma3TextConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextImageProcessor,
    LlavaNextProcessor,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    SiglipVisionConfig,
)

QWEN_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}IMAGE{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{{ '<|im_start|>assistant\n' }}"
)


def bytes_tokenizer(special, image, **names):
    """One token for every byte, and the special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    plain.add_special_tokens(list(special))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, **names)
    tokenizer.chat_template = TEMPLATE.replace("IMAGE", image)
    return tokenizer


def write_json(path, **content):
    path.write_text(json.dumps(content))


def qwen2_vl(folder):
    """Qwen2-VL: 4 layers, 4 query heads, 2 KV heads; images of up to 400 tokens, with M-RoPE."""
    tokenizer = bytes_tokenizer(
        QWEN_TOKENS, QWEN_IMAGE, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.save_pretrained(folder)
    write_json(
        folder / "preprocessor_config.json",
        image_processor_type="Qwen2VLImageProcessor",
        processor_class="Qwen2VLProcessor",
        min_pixels=56 * 56,
        max_pixels=28 * 28 * 400,
        patch_size=14,
        temporal_patch_size=2,
        merge_size=2,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    end, _, turn, first, last, _, image, video = tokenizer.convert_tokens_to_ids(list(QWEN_TOKENS))
    rope = {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 10000.0}
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "rope_parameters": rope,
        "tie_word_embeddings": False,
        "initializer_range": 0.2,
        "bos_token_id": end,
        "eos_token_id": turn,
        "pad_token_id": end,
    }
    vision = {
        "depth": 2,
        "embed_dim": 64,
        "hidden_size": 128,
        "num_heads": 2,
        "mlp_ratio": 2,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "in_channels": 3,
    }
    config = Qwen2VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=first,
        vision_end_token_id=last,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    Qwen2VLForConditionalGeneration(config).float().eval().save_pretrained(folder)
    return str(folder)


LLAVA_TOKENS = ("<pad>", "<s>", "</s>", "<image>", "<|im_start|>", "<|im_end|>")
PINPOINTS = [[56, 112], [112, 56], [112, 112]]


def llava(folder):
    """LLaVA on a Llama: 4 layers, 4 query heads, 2 KV heads; 64 tokens an image."""
    return _llava(
        folder,
        112,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
        CLIPImageProcessor,
        crop_size={"height": 112, "width": 112},
        size={"shortest_edge": 112},
    )


def llava_next(folder):
    """LLaVA-NeXT: an overview of 16 tokens and up to 4 tiles with line ends."""
    return _llava(
        folder,
        56,
        LlavaNextConfig,
        LlavaNextForConditionalGeneration,
        LlavaNextProcessor,
        LlavaNextImageProcessor,
        crop_size={"height": 56, "width": 56},
        size={"shortest_edge": 56},
        image_grid_pinpoints=PINPOINTS,
    )


def _llava(folder, side, config, model, processor, image_processor, **sizes):
    tokenizer = bytes_tokenizer(
        LLAVA_TOKENS, "<image>", pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    pad, begin, end, image, *_ = tokenizer.convert_tokens_to_ids(list(LLAVA_TOKENS))
    processor(
        image_processor=image_processor(**sizes),
        tokenizer=tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=tokenizer.chat_template,
    ).save_pretrained(folder)
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        bos_token_id=begin,
        eos_token_id=end,
        pad_token_id=pad,
        initializer_range=0.2,
        architectures=["LlamaForCausalLM"],
        tie_word_embeddings=False,
    )
    vision = CLIPVisionConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=2,
        image_size=side,
        patch_size=14,
        projection_dim=64,
        initializer_factor=5.0,
    )
    grid = {k: v for k, v in sizes.items() if k == "image_grid_pinpoints"}
    torch.manual_seed(0)
    made = model(
        config(
            vision_config=vision,
            text_config=text,
            image_token_index=image,
            tie_word_embeddings=False,
            **grid,
        )
    )
    made.float().eval().save_pretrained(folder)
    name_as_on_the_hub(folder / "model.safetensors")
    return str(folder)


GEMMA_TOKENS = (
    *("<pad>", "<bos>", "<eos>", "<image_soft_token>", "<start_of_image>", "<end_of_image>"),
    *("\n", "\n\n", "\n\n\n", "\n\n\n\n"),  # around images
)


def gemma3(folder):
    """Gemma 3: two layers with windows and two of full attention; 64 tokens an image."""
    named = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>"}
    tokenizer = bytes_tokenizer(
        GEMMA_TOKENS,
        "<start_of_image>",
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        extra_special_tokens=named | {"eoi_token": "<end_of_image>"},
    )
    pad, begin, end, image, opens, closes, *_ = tokenizer.convert_tokens_to_ids(list(GEMMA_TOKENS))
    images = Gemma3ImageProcessor(size={"height": 112, "width": 112})
    Gemma3Processor(
        images, tokenizer, image_seq_length=64, chat_template=tokenizer.chat_template
    ).save_pretrained(folder)
    text = Gemma3TextConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        query_pre_attn_scalar=32,
        sliding_window=64,
        layer_types=["sliding_attention", "full_attention"] * 2,
        bos_token_id=begin,
        eos_token_id=end,
        pad_token_id=pad,
        initializer_range=0.2,
    )
    vision = SiglipVisionConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=112,
        patch_size=14,
    )
    torch.manual_seed(0)
    made = Gemma3ForConditionalGeneration(
        Gemma3Config(
            text_config=text,
            vision_config=vision,
            mm_tokens_per_image=64,
            boi_token_index=opens,
            eoi_token_index=closes,
            image_token_index=image,
            eos_token_id=end,
            initializer_range=0.2,
        )
    )
    made.model.multi_modal_projector.mm_input_projection_weight.data.normal_(std=0.2)  # zeros
    made.float().eval().save_pretrained(folder)
    name_as_on_the_hub(folder / "model.safetensors")
    return str(folder)


def name_as_on_the_hub(path):
    """transformers 5 reads older names of a tower's weights, and vLLM knows no others."""
    weights = load_file(path)
    old, new = "vision_tower.", "vision_tower.vision_model."
    renamed = {key.replace(old, new): weight for key, weight in weights.items()}
    assert len(renamed.keys() - weights.keys()) > 10
    save_file(renamed, path, metadata={"format": "pt"})
