"""Presses as they are timed: default parameters, and random data instead of downloads.

The values of the data do not affect time or memory. Runs in the environment of kvpress, as
``kvpress_side`` does.
"""

from __future__ import annotations

import sys
from typing import Any

import kvpress
import torch

WINDOW = 64  # SnapKV's
ARGUMENTS = {  # of presses that take no share of the prompt
    "SimLayerKVPress": {"lazy_threshold": 0.9},
    "ThinKPress": {"key_channel_compression_ratio": 0.4},
}


def press_of(request: dict[str, Any], model: Any) -> Any:
    """Build the press for a model; None for the stock cache."""
    if request["press"] is None:
        return None
    outer, _, inner = request["press"].partition("(")
    if outer == "ComposedPress":
        return kvpress.ComposedPress([_new_press(name, request) for name in inner[:-1].split(", ")])
    press = (
        getattr(kvpress, outer)(_new_press(inner[:-1], request))
        if inner
        else _new_press(outer, request)
    )
    if outer in DATA:
        DATA[outer](press, model)
    return press


def _new_press(name: str, request: dict[str, Any]) -> Any:
    arguments = ARGUMENTS.get(name)
    kind = getattr(kvpress, name)
    return kind(1 - request["keep"]) if arguments is None else kind(**arguments)


def _shape(model: Any) -> tuple[int, int, int, int]:
    """Return layers, query heads, KV heads and head size."""
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
    """Count the last tokens as the question, in place of finding it by a delimiter."""
    press.window_size, press.delimiter_token_id = WINDOW, -1


class _Words:
    """Substitute for the model's tokenizer, which is not passed on.

    One token per word of the text before the second pass.
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
