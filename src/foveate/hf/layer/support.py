"""Checks of models, layers and caches: those that can be compressed exactly, and the reasons
against others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel

from foveate.errors import AlreadyCompressing, UnsupportedCache, UnsupportedModel
from foveate.hf.layer.cache_layer import FoveateLayer
from foveate.hf.layer.hybrid_layer import FoveateHybridLayer
from foveate.hf.layer.indexed_layer import FoveateIndexedLayer, indexers, leaders
from foveate.hf.layer.interface import check_known, readers
from foveate.hf.layer.projection import with_latents
from foveate.hf.layer.state import CacheState, Link
from foveate.hf.model.decoder import layer_stacks
from foveate.hf.model.internals import STATES, DynamicLayer, HybridLayer, IndexedLayer
from foveate.hf.model.layer_settings import layer_settings
from foveate.hf.model.weights import weights_digest
from foveate.policies.policy import Policy
from foveate.policies.traits import wrapped
from foveate.profiles.heading import Heading

_GROWING = (DynamicLayer, HybridLayer, IndexedLayer)
"""Classes of layers that are compressed."""

_LEFT = {
    "DummyLayer",  # empty: the layer reads another's pairs, or has no attention
    "DynamicSlidingWindowLayer",
    "LinearAttentionAndSlidingWindowAttentionLayer",
    "LinearAttentionLayer",
    "MiniMaxM3VLSparseCacheLayer",  # its own index selects blocks; it is not compressed and grows
    "UnlimitedOcrDynamicReferenceSlidingWindowLayer",
}
"""Classes of layers that stay uncompressed beside compressed ones."""


def text_config(model: PreTrainedModel) -> PreTrainedConfig:
    """Return the configuration of the decoder whose cache is compressed."""
    config: PreTrainedConfig = model.config.get_text_config(decoder=True)
    return config


def model_name(model: PreTrainedModel) -> str:
    """Return the model's name in profiles: the last part of the path it was loaded from, or its
    class and size if it was built from a configuration.
    """
    loaded_from = str(getattr(model.config, "_name_or_path", "") or "")
    if loaded_from:
        return loaded_from.rstrip("/").split("/")[-1]
    config = text_config(model)
    return f"{type(model).__name__}-{config.num_hidden_layers}x{config.hidden_size}"


def check_profiles(policy: Policy, model: PreTrainedModel) -> None:
    """Raise ProfileMismatch if a stage was calibrated on another model."""
    for stage in (*wrapped(policy.score), policy.budget):
        profile: Heading | None = getattr(stage, "calibrated", None)
        if profile is not None:
            profile.check_model(model_name(model))
            profile.check_layers(len(compressible_layers(text_config(model))))
            if profile.weights:
                profile.check_weights(weights_digest(model))


def inner_model(model: nn.Module) -> nn.Module:
    """Return the model without the wrappers of ``torch.compile(model)`` and PEFT."""
    inner: Any = model
    if hasattr(inner, "_orig_mod"):
        return inner_model(inner._orig_mod)
    if not isinstance(inner, PreTrainedModel) and hasattr(inner, "get_base_model"):
        return inner_model(inner.get_base_model())
    return model


def check_model(model: nn.Module, queued: bool = False) -> PreTrainedModel:
    """Return the model without its wrappers; raise if its cache cannot be compressed exactly. A
    ``queued`` session waits for its turn, so the model may be in use now.

    Raises:
        UnsupportedModel: with the reason.
        AlreadyCompressing: the model is inside another ``compress()`` context.
    """
    model = inner_model(model)
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedModel(
            f"{type(model).__name__} is not a transformers model. Pass the PreTrainedModel itself."
        )
    if not hasattr(model, "generate"):
        raise UnsupportedModel(
            f"{type(model).__name__} has no generate(): it is a part of a model. Pass the complete "
            "model."
        )
    check_attention(model, queued)
    for reason in _reasons(model, text_config(model)):
        raise UnsupportedModel(f"{type(model).__name__} cannot be compressed: {reason}")
    return model


def check_attention(model: PreTrainedModel, queued: bool = False) -> None:
    """Raise for attention implementations that Foveate does not know, and, unless ``queued``, for
    models in use.

    Raises:
        UnsupportedModel: the implementation is unknown.
        AlreadyCompressing: the model is inside another ``compress()`` context.
    """
    name, config = type(model).__name__, text_config(model)
    reader = readers.get(id(config))
    if not queued and reader is not None and reader.link.open:
        raise AlreadyCompressing(
            f"this {name} is inside a compress() block already. Leave that block first; one block "
            "holds one policy."
        )
    check_known(config._attn_implementation, f"{name} cannot be compressed: its")


def _reasons(model: PreTrainedModel, config: PreTrainedConfig) -> list[str]:
    reasons = []
    if model.config.is_encoder_decoder:
        reasons.append("it is an encoder-decoder model; only decoder caches are compressed.")
    if not STATES and (kinds := _with_states(config)):
        reasons.append(
            f"this release of transformers keeps its {', '.join(kinds)} layers in a cache of the "
            "model's own. A newer one keeps them in DynamicCache."
        )
    if len(stacks := layer_stacks(model, config)) > 1:
        reasons.append(
            f"several stacks of layers have one configuration ({', '.join(stacks)}), so it is not "
            "known which of them reads the prompt."
        )
    return reasons or _reasons_of_index(model, config) or _reasons_of_layers(config)


def _reasons_of_layers(config: PreTrainedConfig) -> list[str]:
    """Return the reasons against the layers of the model's cache. Unknown classes are refused: they
    may grow, or store data that depends on the index of a key.
    """
    layers = DynamicCache(config=config).layers
    kinds = sorted({type(layer).__name__ for layer in layers})
    unknown = {type(layer).__name__ for layer in layers if type(layer) not in _GROWING} - _LEFT
    if unknown:
        return [
            f"its cache has layers of the classes {', '.join(sorted(unknown))}, which this version "
            "of Foveate does not know."
        ]
    if not compressible_layers(config):
        return [
            "none of its layers has full attention (all are sliding-window or linear), so "
            f"their caches are bounded already: {', '.join(kinds)}."
        ]
    return []


def _reasons_of_index(model: PreTrainedModel, config: PreTrainedConfig) -> list[str]:
    """Return the reasons against layers with an indexer (sparse attention), if there are any."""
    kinds = [type(layer) for layer in DynamicCache(config=config).layers]
    if not any("Indexed" in kind.__name__ for kind in kinds):
        return []
    if getattr(config, "index_kpool", None):
        return [
            "its indexer chooses pools of consecutive slots of the cache (index_kpool), and an "
            "eviction would put other tokens into them."
        ]
    if IndexedLayer not in kinds or not indexers(with_latents(model)):
        return [
            "its layers keep an index beside keys and values of each head, and Foveate evicts from "
            "an index beside latents (MLA) only."
        ]
    modes = getattr(config, "kv_sharing_modes", None) or ()
    if "reuse_but_indexer" in modes:
        return [
            f"layer {list(modes).index('reuse_but_indexer')} reads the latents of another layer "
            "(kv_source_layers) through an indexer of its own, whose keys have no latents to be "
            "evicted with."
        ]
    return []


def _with_states(config: PreTrainedConfig) -> list[str]:
    """List the kinds of layers that keep a recurrent or convolution state."""
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ()
    return sorted({kind for kind in kinds if "attention" not in kind or "linear" in kind})


def shares_pairs(config: PreTrainedConfig) -> bool:
    """Return True if some layers have no pairs of their own and read those of others."""
    modes = getattr(config, "kv_sharing_modes", None) or ()
    return bool(getattr(config, "num_kv_shared_layers", 0)) or "reuse" in modes


def compressible_layers(config: PreTrainedConfig) -> list[int]:
    """Return the indices of the layers whose cache grows with the prompt: full self-attention."""
    return _growing(DynamicCache(config=config).layers, config)


def _growing(layers: Sequence[object], config: PreTrainedConfig) -> list[int]:
    cross = set(getattr(config, "cross_attention_layers", None) or [])
    return [i for i, layer in enumerate(layers) if type(layer) in _GROWING and i not in cross]


def most_kv_heads(config: PreTrainedConfig) -> int | None:
    """Return the largest number of KV heads of any layer; None if the configuration does not have
    it. Some models give their global layers another number, or each layer its own.
    """
    counts: list[int] = []
    for name in vars(config):
        if name.endswith(("key_value_heads", "kv_heads")):
            for value in layer_settings(config, name):
                counts += [n for n in (value if isinstance(value, list) else [value]) if n]
    return max(counts, default=None)


def state_of(cache: object) -> CacheState | None:
    """Return the state of a cache that Foveate converted; None for any other object."""
    for layer in getattr(cache, "layers", []):
        if isinstance(layer, FoveateLayer):
            return layer.state
    return None


def known_state(cache: object) -> CacheState:
    """Return the state of a cache that Foveate converted.

    Raises:
        UnsupportedCache: Foveate did not convert this cache.
    """
    state = state_of(cache)
    if state is None:
        raise UnsupportedCache(f"this {type(cache).__name__} was not compressed by Foveate.")
    return state


def foveate_layers(cache: Any) -> list[FoveateLayer]:
    """Return the compressed layers of a converted cache."""
    return [layer for layer in cache.layers if isinstance(layer, FoveateLayer)]


def _changes(kind: type[DynamicCache]) -> list[str]:
    """List the methods of ``DynamicCache`` that a class of caches overrides, such as those for
    models' draft tokens (MtpCache, DFlashCache).
    """
    own = kind.__mro__[: kind.__mro__.index(DynamicCache)]
    names = {name for cls in own for name in vars(cls) if not name.startswith("__")}
    return sorted(name for name in names if hasattr(DynamicCache, name))


def convert(cache: Any, config: PreTrainedConfig, policy: Policy, link: Link) -> CacheState:
    """Convert an empty DynamicCache into one under a policy, in place.

    Raises:
        UnsupportedCache: a cache that is not an empty DynamicCache in main memory.
    """
    kind = type(cache).__name__
    if isinstance(cache, DynamicCache) and (changed := _changes(type(cache))):
        raise UnsupportedCache(
            f"a {kind} overrides DynamicCache.{changed[0]}, so the columns of its tokens are "
            "unknown. Pass transformers.DynamicCache(), or none."
        )
    if not isinstance(cache, DynamicCache) or getattr(cache, "offloading", False):
        raise UnsupportedCache(
            f"a {kind}{' with offloading' if isinstance(cache, DynamicCache) else ''} cannot be "
            "compressed. Leave out cache_implementation and past_key_values, or pass "
            "transformers.DynamicCache()."
        )
    fresh = DynamicCache(config=config).layers
    if cache.layers and [type(a) for a in cache.layers] != [type(b) for b in fresh]:
        raise UnsupportedCache(
            f"this {kind} has other layers than the model's own cache: "
            f"{sorted({type(layer).__name__ for layer in cache.layers})}. Pass "
            "transformers.DynamicCache(config=model.config)."
        )
    indices = _growing(fresh, config)
    current: list[Any] = cache.layers
    filled = [i for i, layer in enumerate(current) if i in indices and layer.get_seq_length()]
    if filled:
        raise UnsupportedCache(
            f"layers {filled} of this {kind} hold keys and values that no compress() block has "
            "read, so their tokens are unknown. Read the complete prompt inside the block, or load "
            "a cache with session.load()."
        )
    max_heads = 1 if link.expansions else most_kv_heads(config)
    heads = None if max_heads is None else max_heads * len(indices)
    led = leaders(config, indices)
    state = CacheState(policy, link, len(indices), shares_pairs(config), heads, led)
    layers = list(cache.layers or fresh)  # keep the other layer objects: they may be recording
    for ordinal, index in enumerate(indices):
        states = getattr(fresh[index], "number_of_states", 0)
        if states:
            layers[index] = FoveateHybridLayer(state, index, ordinal, states)
        else:
            is_indexed = type(fresh[index]) is IndexedLayer
            layers[index] = (FoveateIndexedLayer if is_indexed else FoveateLayer)(
                state, index, ordinal
            )
    cache.layers = layers
    return state
