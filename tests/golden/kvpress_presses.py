"""The presses that ``record_kvpress.py`` records, with small windows, and what they are given."""

from __future__ import annotations

from typing import Any, NamedTuple

import kvpress
import torch
from kvpress.presses.kvzap_press import KVzapConfig, KVzapModel
from kvpress_model import GROUPS, HEADS, LAYERS, SIZE, TOKENS, Pass
from transformers import LlamaForCausalLM

RATIO = {"compression_ratio": 0.6}  # of 61 tokens 24 stay
FINCH_WINDOW = 8  # tokens of the question, which otherwise a delimiter tells
DUO_SINKS, DUO_RECENT = 4, 9
ANSWERING, FIRST = ("decoding", "dms_decoding"), 24
"""Presses that are given so many tokens as a prompt, and the others as an answer."""


class Press(NamedTuple):
    """A press by its class, its arguments, and the press that it wraps."""

    name: str
    arguments: dict[str, Any]
    of: Press | None = None
    holds: str = "press"  # what it calls the press that it wraps

    def made(self) -> Any:
        inner = {self.holds: self.of.made()} if self.of else {}
        return getattr(kvpress, self.name)(**inner, **self.arguments)

    def said(self) -> dict[str, Any]:
        inner = {self.holds: self.of.said()} if self.of else {}
        return {"class": self.name, **self.arguments, **inner}


def ranking(name: str, **arguments: Any) -> Press:
    return Press(name, RATIO | arguments)


KNORM, KEYDIFF = ranking("KnormPress"), ranking("KeyDiffPress")
SNAPKV = ranking("SnapKVPress", window_size=8, kernel_size=5)
PRESSES = {
    "knorm": KNORM,
    "snapkv": SNAPKV,
    "pyramidkv": ranking("PyramidKVPress", window_size=4, kernel_size=5, beta=2),
    "tova": ranking("TOVAPress"),
    "streaming_llm": ranking("StreamingLLMPress", n_sink=4),
    "expected_attention": ranking("ExpectedAttentionPress", epsilon=0.02),
    "expected_attention_unrotated": ranking("ExpectedAttentionPress", epsilon=0.02, n_sink=0),
    "expected_attention_stats": ranking("ExpectedAttentionStatsPress", epsilon=0.02),
    "observed_attention": ranking("ObservedAttentionPress"),
    "keydiff": KEYDIFF,
    "adakv": Press("AdaKVPress", {"alpha_safeguard": 0.2}, SNAPKV),
    "adakv_unguarded": Press("AdaKVPress", {"alpha_safeguard": 0.0}, SNAPKV),
    "adakv_guarded": Press("AdaKVPress", {"alpha_safeguard": 0.95}, SNAPKV),
    "lagkv": Press("LagKVPress", {"compression_ratio": 0.59, "lag_size": 8}),  # 25: no ties there
    "lagkv_cross": ranking("LagKVPress", lag_size=8, cross_scoring=True),
    "cur": ranking("CURPress", num_sinks=4, local_window_size=16),
    "cur_global": ranking("CURPress", leverage_type="kv_avg", use_local_approximation=False),
    "leverage": ranking("LeverageScorePress", sketch_dimension=48),
    "non_causal": ranking("NonCausalAttnPress", chunk_size=TOKENS),
    "non_causal_padded": ranking("NonCausalAttnPress", chunk_size=16),
    "compactor": ranking("CompactorPress", chunk_size=TOKENS - 8 - 4),
    "compactor_unrotated": ranking("CompactorPress", chunk_size=TOKENS - 8 - 4),
    "compactor_padded_unrotated": ranking("CompactorPress", chunk_size=256),
    "qfilter": ranking("QFilterPress"),
    "chunkkv": Press("ChunkKVPress", {"chunk_length": 8}, SNAPKV),
    "chunkkv_keydiff": Press("ChunkKVPress", {"chunk_length": 8}, KEYDIFF),
    "chunk": Press("ChunkPress", {"chunk_length": 20}, KNORM),
    "block": Press("BlockPress", {"block_size": 8}, KEYDIFF),
    "criticalkv": Press("CriticalKVPress", {}, SNAPKV),
    "criticaladakv": Press("CriticalAdaKVPress", {"alpha_safeguard": 0.2}, SNAPKV),
    "finch": ranking("FinchPress", rerotate_keys=False),
    "finch_chunked": ranking("FinchPress", rerotate_keys=False, chunk_length=30),
    "finch_plain": ranking("FinchPress", rerotate_keys=False, normalize_scores=False),
    "simlayerkv": Press("SimLayerKVPress", {"lazy_threshold": 0.32, "n_recent": 16}),
    "duo_attention": Press("DuoAttentionPress", {"head_compression_ratio": 0.5}),
    "think": Press("ThinKPress", {"key_channel_compression_ratio": 0.4, "window_size": 8}),
    "dms": Press("DMSPress", {"threshold": -4.0, "sliding_window_size": 8}, KNORM),
    "dms_decoding": Press(
        "DMSPress", {"threshold": -4.0, "sliding_window_size": 8, "decoding": True}, KNORM
    ),
    "decoding": Press(
        "DecodingPress",
        {"compression_interval": 4, "target_size": FIRST},
        Press("KnormPress", {}),
        "base_press",
    ),
    "kvzap_unrotated": Press(
        "DMSPress", {"threshold": -4.0, "sliding_window_size": 8}, Press("KVzapPress", {})
    ),
    "kvzip": ranking("KVzipPress"),
    "kvzip_layerwise": ranking("KVzipPress", layerwise=True),
    "kvzip_plus": ranking("KVzipPress", kvzip_plus_normalization=True),
    "kvzip_chunked": ranking("KVzipPress", chunk_size=24),
}


def prepared(name: str, press: Any, model: LlamaForCausalLM) -> Pass:
    """Gives a press what it would load or be told, and returns that."""
    generator = torch.Generator().manual_seed(2)
    if name.startswith("kvzap"):
        return with_surrogate(press.press, model, generator)
    if name == "qfilter":
        filters = torch.randn(LAYERS, HEADS, SIZE, generator=generator)
        press.load_q_filters = lambda _: filters
        return {"filters": filters}
    if name == "duo_attention":
        heads = torch.rand(LAYERS, HEADS, generator=generator)
        press.load_attention_pattern = lambda _: (DUO_SINKS, DUO_RECENT, heads.numpy())
        return {"heads": heads}
    if name == "expected_attention_stats":
        press.mu = torch.randn(LAYERS, HEADS * GROUPS, SIZE, generator=generator)
        spread = torch.randn(LAYERS, HEADS * GROUPS, SIZE, SIZE, generator=generator) / SIZE
        press.cov = spread @ spread.transpose(2, 3)
        return {"mean": press.mu, "covariance": press.cov}
    if name.startswith("finch"):
        press.window_size, press.delimiter_token_id = FINCH_WINDOW, -1
    return {}


def with_surrogate(press: Any, model: LlamaForCausalLM, generator: torch.Generator) -> Pass:
    """Gives KVzap linear maps of hidden states that look at a head's own key and value alone: maps
    of these, behind the projections that make them.
    """
    of_key, of_value = torch.randn(2, LAYERS, HEADS, SIZE, generator=generator) / 4
    offset = torch.randn(LAYERS, HEADS, generator=generator) - 4
    hidden = model.config.hidden_size
    press.post_init_from_model = lambda _: None
    press.kvzap_model = KVzapModel(
        KVzapConfig(input_dim=hidden, output_dim=HEADS, hidden_dim=None, n_modules=LAYERS)
    )
    for i, layer in enumerate(model.model.layers):
        keys, values = (
            projection.weight.view(HEADS, SIZE, hidden)
            for projection in (layer.self_attn.k_proj, layer.self_attn.v_proj)
        )
        linear = press.kvzap_model.layers[i]
        seen = (of_key[i, :, None] @ keys + of_value[i, :, None] @ values)[:, 0]
        linear.weight.data, linear.bias.data = seen, offset[i]
    return {"of_key": of_key, "of_value": of_value, "offset": offset}
