"""The sizes of tiny models, by the names configurations have for them."""

from __future__ import annotations

from typing import Any

PAD = 0
"""Padding id of every family; never a text token."""

TEXT_FROM = 20
"""Ids below this are special; text starts here."""

VOCAB = 160
"""Size of the vocabularies, special ids included."""

IMAGE = 3
"""Image placeholder of every family that lets its configuration choose one."""

VIDEO = 4
"""Video placeholder."""

BEFORE = 5
"""Opens an image (vision start, begin of image, ...)."""

AFTER = 6
"""Closes an image."""

HIDDEN = 64
"""Width of every decoder."""

TOWER = 32
"""Width of every vision tower."""

PATCH = 4
"""Side of a patch in pixels."""

SIDE = 24
"""Side of an image in pixels, where a family does not ask for another: 6 by 6 patches."""

WINDOW = 12
"""Sliding windows, short enough to matter in a prompt of 23 tokens."""

SHARED: dict[str, Any] = {
    "hidden_dropout": 0.0,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "dropout": 0.0,
    "layerdrop": 0.0,
    "tie_word_embeddings": False,
    "is_decoder": None,
}
"""Settings of every part; ``None`` leaves the default."""

TEXT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "unpadded_vocab_size": VOCAB,
    "n_embd": HIDDEN,
    "d_model": HIDDEN,
    "embed_dim": HIDDEN,
    "word_embed_proj_dim": HIDDEN,
    "intermediate_size": 96,
    "intermediate_size_mlp": 96,
    "ffn_dim": 96,
    "n_inner": 96,
    "num_attention_heads": 4,
    "attention_heads": 4,
    "n_head": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "n_positions": 1024,
    "sliding_window": WINDOW,
    "sliding_window_size": WINDOW,
    "attention_chunk_size": WINDOW,
    "vocab_size_per_layer_input": VOCAB,
    "hidden_size_per_layer_input": 8,
    "query_pre_attn_scalar": 16,
    "moe_intermediate_size": 32,
    "moe_hidden_size": HIDDEN,
    "shared_expert_intermediate_size": 32,
    "share_expert_dim": 32,
    "shared_intermediate_size": 32,
    "shared_experts_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32,
    "dense_intermediate_size": 96,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "top_k_experts": 2,
    "n_shared_experts": 1,
    "moe_num_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "index_topk": 24,
    "index_head_dim": 16,
    "index_n_heads": 8,  # fewer give ties among the keys they choose
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_head_dim": 8,
    "linear_num_heads": 4,
    "ssm_state_size": 8,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "mamba_d_state": 8,
    "mamba_dt_rank": 4,
    "n_groups": 2,
    "chunk_size": 8,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 16,
    "rel_extent": 32,
    "d_rel": 8,
    "num_nextn_predict_layers": 0,
    "num_mtp_layers": 0,
}
"""Sizes of a decoder."""

VISION: dict[str, Any] = {
    "hidden_size": TOWER,
    "embed_dim": TOWER,
    "d_model": TOWER,
    "intermediate_size": 48,
    "mlp_dim": 48,
    "ffn_dim": 48,
    "num_hidden_layers": 2,
    "n_layers": 2,
    "depth": 2,
    "num_attention_heads": 2,
    "num_heads": 2,
    "attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "image_size": SIDE,
    "patch_size": PATCH,
    "out_hidden_size": HIDDEN,
    "text_hidden_size": HIDDEN,
    "projection_dim": TOWER,
    "num_position_embeddings": 64,
    "position_embedding_size": 64,
    "pos_emb_height": 8,
    "pos_emb_width": 8,
    "max_position_embeddings": 64,
    "num_patches": 64,
    "window_size": 4 * PATCH,
    "insert_layer_id": 0,
    "moe_intermediate_size": 32,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "fullatt_block_indexes": [1],
    "deepstack_visual_indexes": [0, 1],
    "global_attn_indexes": [1],
    "output_channels": 16,
    "projector_hidden_size": TOWER,
}
"""Sizes of a vision tower."""

OTHER: dict[str, Any] = {
    "num_hidden_layers": 2,
    "encoder_layers": 1,
    "d_model": TOWER,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "hidden_size": TOWER,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "output_dim": HIDDEN,
    "downsample_hidden_size": 8,
    "vocab_size": VOCAB,
    "encoder_hidden_size": TOWER,
    "num_mel_bins": 16,
    "adapter_out_dim": HIDDEN,
}
"""Sizes of audio towers, query transformers and the like."""

JOINT: dict[str, Any] = {
    "num_query_tokens": 4,
    "projection_dim": HIDDEN,
    "image_text_hidden_size": TOWER,
    "projector_hidden_size": TOWER,
    "projection_hidden_size": TOWER,
    "alignment_intermediate_size": 64,
    "image_seq_length": 9,
}
"""Sizes between tower and decoder, on the outermost configuration."""

IDS: tuple[tuple[str, int | None], ...] = (
    ("pad_token", PAD),
    ("bos_token", None),
    ("eos_token", None),
    ("eoi_token", AFTER),
    ("boi_token", BEFORE),
    ("image_start", BEFORE),
    ("image_end", AFTER),
    ("vision_start", BEFORE),
    ("vision_end", AFTER),
    ("video_start", 7),
    ("video_end", 8),
    ("audio_start", 9),
    ("audio_end", 10),
    ("boa_token", 9),
    ("eoa_token", 10),
    ("image_token", IMAGE),
    ("video_token", VIDEO),
    ("audio_token", 11),
)
"""Special ids by how the name of their setting starts."""
