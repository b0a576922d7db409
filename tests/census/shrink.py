"""Makes a configuration small: keeps every kind of layer, and drops the repetitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import sizes

DROP: Any = object()
"""As an override: leave the setting at its default."""

_MOST_LAYERS = 4
_NEVER_PATTERNS = ("bos_token_id", "eos_token_id", "architectures")


def shrunk(
    config_class: type, overrides: Mapping[str, Any], start: Mapping[str, Any] | None = None
) -> Any:
    """A small configuration of a class.

    Args:
        config_class: A configuration class whose defaults are complete.
        overrides: Settings, nested like the configuration, that win over the generic sizes.
        start: Settings of the big configuration from which the walk starts, for classes whose
            defaults lack a part.
    """
    big = config_class(**(start or {}))
    return config_class(**merged(small(big), overrides))


def small(config: Any, path: str = "") -> dict[str, Any]:
    """The keyword arguments that make ``config`` small; settings without a size are left out."""
    whole = config.to_dict()
    table = _table(whole, path)
    layers = _layers(whole, table)
    chosen: dict[str, Any] = {}
    for key, value in whole.items():
        if isinstance(value, dict) and "model_type" in value:
            part = getattr(config, key)
            chosen[key] = small(part, f"{path}.{key}") | {"model_type": value["model_type"]}
        else:
            chosen |= _setting(key, value, table, layers)
    return _carried(config, whole, chosen) | chosen | _consistent(whole, chosen)


def _carried(config: Any, whole: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Plain settings in which a part differs from the defaults of its own class."""
    usual = type(config)().to_dict()
    return {
        key: value
        for key, value in whole.items()
        if isinstance(value, int | float | str | None) and value != usual.get(key, value)
        if key not in (*chosen, "transformers_version", "model_type", "_name_or_path", "dtype")
    }


def merged(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with ``overrides`` put over them, part by part."""
    result = dict(base)
    for key, value in overrides.items():
        if value is DROP:
            result.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merged(result[key], value)
        else:
            result[key] = value
    return result


def representatives(
    patterns: Sequence[Sequence[Any]], most: int = _MOST_LAYERS, least: int = 3
) -> list[int]:
    """Layers that show every kind of every pattern, in the order they have in the model.

    All kinds together are kept where there are few; else each pattern's kinds on their own.
    """
    kinds = list(zip(*[[str(each) for each in pattern] for pattern in patterns], strict=True))
    first = {kind: index for index, kind in reversed(list(enumerate(kinds)))}
    if len(first) > most:
        seen: set[tuple[int, str]] = set()
        chosen = []
        for index, kind in enumerate(kinds):
            if new := set(enumerate(kind)) - seen:
                seen |= new
                chosen.append(index)
        return chosen
    chosen = sorted(first.values())
    for index in range(len(kinds)):
        if len(chosen) < least and index not in chosen:
            chosen = sorted([*chosen, index])
    return chosen


def _layers(whole: Mapping[str, Any], table: Mapping[str, Any]) -> list[int]:
    """Which of the layers to keep: their indices in the big model; none where the table says."""
    if table not in (sizes.TEXT, sizes.VISION):
        return []
    count = whole.get("num_hidden_layers") or whole.get("n_layer") or 3
    patterns = [value for value in whole.values() if _is_pattern(value, count)]
    if table is sizes.VISION:
        return representatives(patterns, least=2) if patterns else []
    return representatives(patterns) if patterns else list(range(min(count, 3)))


def _is_pattern(value: Any, count: int) -> bool:
    if not isinstance(value, list | tuple) or len(value) != count or count < 3:
        return False
    return list(value) != list(range(count))


def _table(whole: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """The sizes for a part, told by where it is and what it has."""
    if any(word in path for word in ("vision", "sam_config", "vq_config", "vit")):
        return sizes.VISION
    if any(word in path for word in ("audio", "qformer", "perceiver", "adapter")):
        return sizes.OTHER
    layers = {
        "num_hidden_layers",
        "n_layer",
        "num_layers",
        "layers",
        "decoder_layers",
    } & whole.keys()
    if "vocab_size" in whole and (layers or "layers_block_type" in whole):
        return sizes.TEXT
    return sizes.JOINT


def _setting(
    key: str, value: Any, table: Mapping[str, Any], layers: Sequence[int]
) -> dict[str, Any]:
    """The small value of one setting, if it has one."""
    for start, number in sizes.IDS:
        if key.startswith(start) and key.endswith(("_id", "_index")):
            return {key: number}
    if key in sizes.SHARED and sizes.SHARED[key] is not None:
        return {key: sizes.SHARED[key]}
    if key in ("num_hidden_layers", "n_layer", "num_layers", "layers") and layers:
        return {key: len(layers)}
    if layers and key not in _NEVER_PATTERNS and _is_pattern(value, layers_of(layers, value)):
        return {key: [value[index] for index in layers]}
    if key in table and value not in (None, 0):  # zero switches a part off
        return {key: _sized(value, table[key])}
    return {}


def layers_of(layers: Sequence[int], value: Any) -> int:
    """The length a pattern must have to be one; lists too short for the kept layers are none."""
    if not isinstance(value, list | tuple) or len(value) <= max(layers) or len(value) < 3:
        return -1
    return len(value)


def _sized(value: Any, size: Any) -> Any:
    """A size in the shape the setting has: some are pairs."""
    if isinstance(value, list | tuple) and not isinstance(size, list | tuple):
        return [size] * len(value)
    return size


def _consistent(whole: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that follow from others: latent attention has as many key heads as query heads."""
    fixed: dict[str, Any] = {}
    if whole.get("kv_lora_rank") and "num_key_value_heads" in chosen:
        fixed["num_key_value_heads"] = chosen["num_attention_heads"]
        rope = whole.get("qk_rope_head_dim")
        if rope and whole.get("head_dim") == rope:
            fixed["head_dim"] = chosen["qk_rope_head_dim"]
    rope = whole.get("rope_parameters")
    if isinstance(rope, dict) and rope.get("partial_rotary_factor", 1.0) < 1.0:
        fixed["rope_parameters"] = rope | {"partial_rotary_factor": 0.5}
    return fixed
