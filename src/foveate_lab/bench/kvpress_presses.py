"""Presses as they are timed: with their own defaults, and drawn data where they would download it,
whose values cost nothing.

Runs in the environment of kvpress, as ``kvpress_side`` does.
"""

from __future__ import annotations

import sys
from typing import Any

import kvpress
import torch

WINDOW = 64  # SnapKV's
ARGUMENTS = {  # of those that are given no share of the prompt
    "SimLayerKVPress": {"lazy_threshold": 0.9},
    "ThinKPress": {"key_channel_compression_ratio": 0.4},
}


def press_of(one: dict[str, Any], model: Any) -> Any:
    """The press for a model; None for the stock cache."""
    if one["press"] is None:
        return None
    outer, _, inner = one["press"].partition("(")
    if outer == "ComposedPress":
        return kvpress.ComposedPress([_made(name, one) for name in inner[:-1].split(", ")])
    made = getattr(kvpress, outer)(_made(inner[:-1], one)) if inner else _made(outer, one)
    if outer in DATA:
        DATA[outer](made, model)
    return made


def _made(name: str, one: dict[str, Any]) -> Any:
    arguments = ARGUMENTS.get(name)
    kind = getattr(kvpress, name)
    return kind(1 - one["keep"]) if arguments is None else kind(**arguments)


def _shape(model: Any) -> tuple[int, int, int, int]:
    """Layers, query heads, KV heads, size of a head."""
    config = model.config
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return config.num_hidden_layers, heads, config.num_key_value_heads, size


def _filters(press: Any, model: Any) -> None:
    layers, _, heads, size = _shape(model)
    drawn = torch.randn(layers, heads, size, dtype=torch.float32, device=model.device)
    press.load_q_filters = lambda _: drawn


def _statistics(press: Any, model: Any) -> None:
    layers, heads, _, size = _shape(model)
    press.mu = torch.randn(layers, heads, size, device=model.device, dtype=model.dtype)
    spread = torch.randn(layers, heads, size, size, device=model.device, dtype=model.dtype) / size
    press.cov = spread @ spread.transpose(2, 3)


def _heads(press: Any, model: Any) -> None:
    layers, _, heads, _ = _shape(model)
    drawn = torch.rand(layers, heads, dtype=torch.float32, device="cpu").numpy()
    press.load_attention_pattern = lambda _: (128, 256, drawn)


def _question(press: Any, model: Any) -> None:
    """The last tokens, where a delimiter would tell which are the question."""
    press.window_size, press.delimiter_token_id = WINDOW, -1


class _Words:
    """Stands in for the model's tokenizer, which is not handed over: a token for each word of what
    is said before the second reading.
    """

    chat_template = None

    @classmethod
    def from_pretrained(cls, name: str) -> _Words:
        return cls()

    def encode(self, text: str, **_: Any) -> torch.Tensor:
        return torch.ones(1, len(text.split()), dtype=torch.long, device="cpu")


def _tokenizer(press: Any, model: Any) -> None:
    sys.modules[type(press).__module__].AutoTokenizer = _Words  # type: ignore[attr-defined]


DATA = {
    "DuoAttentionPress": _heads,
    "ExpectedAttentionStatsPress": _statistics,
    "FinchPress": _question,
    "KVzipPress": _tokenizer,
    "QFilterPress": _filters,
}
