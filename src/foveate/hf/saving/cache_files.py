"""Writing and reading of compressed caches: safetensors, with the model's identity, fingerprints of
tokenizer and policy, and a digest of the content.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from foveate.cache.pairs import DensePairs, Pairs, RaggedPairs, RewrittenPairs, exact
from foveate.cache.tokens import Tokens
from foveate.compression.composition import policy as policy_of
from foveate.data import files
from foveate.errors import CacheMismatch, InvalidInput, UnsupportedCache
from foveate.hf.layer.cache_layer import FoveateLayer
from foveate.hf.layer.hybrid_layer import FoveateHybridLayer
from foveate.hf.layer.projection import EXPAND, with_latents
from foveate.hf.layer.state import CacheState
from foveate.hf.layer.support import foveate_layers
from foveate.hf.model.devices import input_device
from foveate.hf.saving import file_checks
from foveate.hf.saving.file_checks import EXTRA, RUNNING, SCHEMA, Saved, named
from foveate.hf.saving.identity import ModelIdentity, decoder_dtype, former_fingerprints
from foveate.policies.policy import Policy
from foveate.policies.protocols import Restores

SHARES = "shares"
"""Note with the policy whose budget shares are written out."""
DROPPED = "dropped."
"""Name prefix of the masks of tokens that pruning dropped before a layer; the layer's number in the
model follows.
"""

LATENTS = {"form": "latents"}
"""Note of a file whose pairs are latents and rotary keys."""

REMEMBERED = ("queries", "places", "kept")
"""Names of the tensors that the reading of a prompt stores for a layer, if any."""

HOST = "host_"
"""Name part of extra tensors that stay in main memory after loading."""


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Return a hash of the vocabulary of a tokenizer, or a processor's; empty without one."""
    words = getattr(tokenizer, "tokenizer", tokenizer)
    if not hasattr(words, "get_vocab"):
        return ""
    vocabulary = json.dumps(sorted(words.get_vocab().items()))
    return hashlib.sha256(vocabulary.encode()).hexdigest()


def save(
    path: Path,
    cache: DynamicCache,
    model: PreTrainedModel,
    policy: Policy,
    tokenizer: Any,
) -> Path:
    """Write the cache atomically, without its spare room."""
    layers = foveate_layers(cache)
    if not layers or not layers[0].is_initialized or layers[0].armed:
        raise InvalidInput("this cache has no finished prompt yet: nothing to save.")
    tensors: dict[str, Tensor] = {}
    seen = {}
    cache_layers: list[Any] = cache.layers
    for index, layer in enumerate(cache_layers):
        if isinstance(layer, FoveateHybridLayer):
            raise UnsupportedCache(
                "a layer with a recurrent state beside its keys and values cannot be saved."
            )
        if isinstance(layer, FoveateLayer):
            tensors |= {f"{index}.{k}": v for k, v in _tensors(layer).items()}
            seen[index] = [layer.seen, layer.memory.finished, layer.pairs.first]
        elif layer.is_initialized and type(layer).__name__ != "DummyLayer":
            if not isinstance(getattr(layer, "keys", None), Tensor):
                raise UnsupportedCache(f"a {type(layer).__name__} cannot be saved.")
            tensors |= {f"{index}.keys": layer.keys, f"{index}.values": layer.values}
            seen[index] = [getattr(layer, "cumulative_length", 0)]
    state = layers[0].state
    tensors |= {f"{EXTRA}{k}": v for k, v in state.tokens.extras.items() if isinstance(v, Tensor)}
    tensors["pads"] = state.tokens.pad  # type: ignore[assignment]
    if state.tokens.seen_visual is not None:
        tensors["vision"] = state.tokens.seen_visual
        if state.tokens.frame is not None:
            tensors["frames"] = state.tokens.frame
    tensors |= {f"{DROPPED}{layer}": which for layer, which in state.tokens.dropped.items()}
    note = {
        "schema": SCHEMA,
        "model": ModelIdentity.of(model).as_json,
        "policy": policy.spec,
        **({} if state.policy == policy else {SHARES: state.policy.spec}),
        "tokenizer": tokenizer_fingerprint(tokenizer),
        "seen": json.dumps(seen),
        **(LATENTS if with_latents(model) else {}),
    }
    note["digest"] = file_checks.digest(note, tensors)
    with files.replacing(path) as part:
        try:
            save_file({k: v.contiguous().clone() for k, v in tensors.items()}, part, note)
        except SafetensorError as error:  # raised on a full disk
            raise OSError(str(error)) from error
    return path


def load(
    path: Path,
    cache: DynamicCache,
    model: PreTrainedModel,
    policy: Policy,
    tokenizer: Any,
) -> None:
    """Fill a converted, empty cache from a file, after all of the file was checked."""
    saved_cache = file_checks.read(path)
    _check(saved_cache, model, policy, tokenizer)
    if policy.left_open:
        if SHARES not in saved_cache.note:
            saved_cache.refuse("it does not say how its budget was divided")
        policy = policy_of(saved_cache.note[SHARES])
        foveate_layers(cache)[0].state.divide(policy, None)
    _check_tensors(saved_cache, cache, model)
    saved_cache = _moved(saved_cache, model)
    seen = saved_cache.seen
    cache_layers: list[Any] = cache.layers
    for index, layer in enumerate(cache_layers):
        tensors: dict[str, Any] = saved_cache.of_layer(index)
        if isinstance(layer, FoveateLayer):
            columns, finished, first = seen[str(index)]
            layer.refill(_pairs(saved_cache, index, first, policy), columns, finished)
            memory = layer.memory
            for name in REMEMBERED:
                setattr(memory, name, tensors.get(name))
            memory.state = named(tensors, RUNNING)
        elif tensors:
            layer.lazy_initialization(tensors["keys"], tensors["values"])
            layer.keys, layer.values = tensors["keys"], tensors["values"]
            if hasattr(layer, "cumulative_length"):
                layer.cumulative_length = seen[str(index)][0]
    _fill(foveate_layers(cache)[0].state, saved_cache.tensors)


def _check_tensors(saved_cache: Saved, cache: DynamicCache, model: PreTrainedModel) -> None:
    """Raise InvalidInput unless every layer's tensors exist, and fit each other, the model and the
    batch.
    """
    widths, rows, used = _widths(model), set(), {"pads", "vision", "frames"}
    reached = set()
    for index, layer in enumerate(cache.layers):
        compressed, tensors = isinstance(layer, FoveateLayer), saved_cache.of_layer(index)
        if compressed or tensors:
            layer_rows = file_checks.check_layer(
                saved_cache, index, widths.get(index, {}), compressed
            )
            rows |= set() if layer_rows is None else {layer_rows}
            reached |= {saved_cache.seen[str(index)][0]} if compressed else set()
            used |= {f"{index}.{name}" for name in tensors}
    if len(reached) > 1:
        saved_cache.refuse(
            f"its layers have read {min(reached)} to {max(reached)} tokens, as it was saved after "
            "a pass that was interrupted"
        )
    pads, vision = saved_cache.tensors.get("pads"), saved_cache.tensors.get("vision")
    matches = pads is not None and rows <= {pads.numel()}
    if pads is None or pads.dtype != torch.int64 or not matches or pads.dim() != 1:
        saved_cache.refuse("its tensor 'pads' does not have one integer for each row of its layers")
    for name in ("vision", "frames"):
        flags = saved_cache.tensors.get(name)
        matches = vision is not None and flags is not None and flags.shape == vision.shape
        if flags is not None and not (matches and flags.dtype == torch.bool and flags.dim() == 2):
            saved_cache.refuse(f"its tensor {name!r} does not have one boolean for each token")
    used |= _check_dropped(saved_cache, pads.numel())
    others = [name for name in saved_cache.tensors if not name.startswith(EXTRA)]
    if unknown := sorted(set(others) - used):
        saved_cache.refuse(f"its tensor {unknown[0]!r} belongs to no layer of the model")


def _check_dropped(saved_cache: Saved, rows: int) -> set[str]:
    """Check the masks of dropped tokens against the file's rows and tokens; return their names."""
    longest = max((counts[0] for counts in saved_cache.seen.values()), default=0)
    dropped = {name: t for name, t in saved_cache.tensors.items() if name.startswith(DROPPED)}
    for name, which in dropped.items():
        flags = which.dtype == torch.bool and which.dim() == 2
        fits = flags and len(which) == rows and which.shape[1] <= longest
        if not fits or not name.removeprefix(DROPPED).isdecimal():
            saved_cache.refuse(
                f"its tensor {name!r} does not have one boolean for each token of each row"
            )
    return set(dropped)


def _widths(model: PreTrainedModel) -> dict[int, dict[str, int]]:
    """Return the lengths of the axes "h" and "d" for layers with a key projection of their own."""
    widths: dict[int, dict[str, int]] = {}
    for module in model.modules():
        width, index = getattr(module, "head_dim", None), getattr(module, "layer_idx", None)
        rows = getattr(getattr(module, "k_proj", None), "out_features", None)
        if hasattr(module, EXPAND):
            latents = {"h": 1, "d": int(module.kv_lora_rank)}  # type: ignore[arg-type]
            widths[int(module.layer_idx)] = latents  # type: ignore[arg-type]
        if isinstance(width, int) and isinstance(index, int) and isinstance(rows, int):
            widths[index] = {"h": rows // width, "d": width}
    return widths


def _fill(state: CacheState, tensors: dict[str, Tensor]) -> None:
    state.tokens = Tokens(
        vision=tensors.get("vision"),
        vision_known="vision" in tensors,
        frame=tensors.get("frames"),
        pad=tensors["pads"],
        dropped={int(name): t for name, t in named(tensors, DROPPED).items()},
        extras=named(tensors, EXTRA),
    )
    state.update_turn(awaiting=False)
    if (images := state.images()) is not None:
        for layer in state.layers:
            if (queries := layer.memory.queries) is not None:
                layer.memory.images = images[0][:, : layer.seen][:, -queries.shape[2] :]


def _check(saved_cache: Saved, model: PreTrainedModel, policy: Policy, tokenizer: Any) -> None:
    path, note = saved_cache.path, saved_cache.note
    _check_model(saved_cache, model)
    if note["policy"] != policy.spec:
        raise CacheMismatch(
            f"{path} was compressed with {note['policy']!r}, but this block's policy is "
            f"{policy.spec!r}. Open the block with foveate.policy({note['policy']!r})."
        )
    own = LATENTS["form"] if with_latents(model) else None
    if note.get("form") != own:
        raise CacheMismatch(
            f"{path} holds {note.get('form', 'keys and values per head')}, and this release of "
            f"transformers caches {own or 'keys and values per head'} of this model. Load it with "
            "the release that wrote it, or compress the context again."
        )
    fingerprint = tokenizer_fingerprint(tokenizer)
    if fingerprint and note["tokenizer"] and fingerprint != note["tokenizer"]:
        raise CacheMismatch(f"{path} was written with another tokenizer.")


def _check_model(saved_cache: Saved, model: PreTrainedModel) -> None:
    """Raise CacheMismatch unless this is the model that wrote the file, or an exact cast of it."""
    if (identity := saved_cache.model) is None:  # written before schema 3
        same = saved_cache.note["model"] in former_fingerprints(model)
        differences = [] if same else ["it had another configuration or other weights"]
    else:
        differences = ModelIdentity.of(model).differences(identity)
    if differences:
        raise CacheMismatch(
            f"{saved_cache.path} was written with another model: {'; '.join(differences)}. Load it "
            "with the model that wrote it, or compress the context again."
        )


def _cast_from(saved_cache: Saved, model: PreTrainedModel) -> torch.dtype | None:
    """Return the dtype of the file's tensors that need a cast, because the model has been cast
    since; None without a cast. Older files without a dtype are never refused.

    Raises:
        CacheMismatch: the cast would round, or a store holds pairs in a form whose values depend on
            the dtype.
    """
    identity = saved_cache.model
    name = saved_cache.pairs_dtype if identity is None else identity.dtype
    own = decoder_dtype(model)
    if name in ("", own) or not own:
        return None
    dtype: torch.dtype = getattr(torch, name)
    target = getattr(torch, own)
    stored_otherwise = any(
        not file_checks.held_exactly([k.split(".", 1)[-1]]) for k in saved_cache.tensors
    )
    if torch.promote_types(dtype, target) != target or stored_otherwise:
        if identity is None:
            return None
        why = "its store keeps pairs in that dtype only" if stored_otherwise else "the cast rounds"
        raise CacheMismatch(
            f"{saved_cache.path} was written with the model in {name}, and this one is in {own}: "
            f"{why}. Load the model with dtype=torch.{name}, or compress the context again."
        )
    return dtype


def _moved(saved_cache: Saved, model: PreTrainedModel) -> Saved:
    """Return the file's tensors on the model's device and in its dtype."""
    device, cast_from = input_device(model), _cast_from(saved_cache, model)
    to = None if cast_from is None else getattr(torch, decoder_dtype(model))
    tensors = {
        name: tensor.to(
            "cpu" if HOST in name else device,
            to if tensor.dtype == cast_from and RUNNING not in name else tensor.dtype,
        )
        for name, tensor in saved_cache.tensors.items()
    }
    return saved_cache._replace(tensors=tensors)


def _tensors(layer: FoveateLayer) -> dict[str, Tensor]:
    layer.in_order()
    memory = layer.memory
    tensors = {f"{RUNNING}{name}": t for name, t in memory.state.items()}
    for name in REMEMBERED:
        if (tensor := getattr(memory, name)) is not None:
            tensors[name] = tensor
    return tensors | _tensors_of_pairs(layer.pairs, layer.policy)


def _tensors_of_pairs(pairs: Pairs, policy: Policy) -> dict[str, Tensor]:
    """Return the tensors of pairs; raise UnsupportedCache if their store cannot restore them."""
    tensors = pairs.tensors()
    if isinstance(pairs, DensePairs | RaggedPairs | RewrittenPairs):
        return tensors
    if not isinstance(policy.store, Restores):
        raise UnsupportedCache(
            f"pairs held as {policy.store!r} cannot be saved: {type(policy.store).__name__} has no "
            "restored(tensors, first), which rebuilds pairs from their tensors()."
        )
    if file_checks.knows(tensors):
        return tensors
    restored = policy.store.restored({k: t.clone() for k, t in tensors.items()}, pairs.first)
    if not all(map(torch.equal, restored.padded(), pairs.padded())):
        raise UnsupportedCache(
            f"pairs held as {policy.store!r} cannot be saved: restored(tensors, first) did not "
            "rebuild the pairs from their tensors()."
        )
    return {f"{file_checks.OWN}{name}": t for name, t in tensors.items()}


def _pairs(saved_cache: Saved, index: int, first: int, policy: Policy) -> Pairs:
    tensors = saved_cache.of_layer(index)
    if file_checks.held_exactly(tensors):
        return exact(tensors, first)
    if not isinstance(policy.store, Restores):
        saved_cache.refuse(f"layer {index} is not stored as {policy.store!r} stores pairs")
    return policy.store.restored(named(tensors, file_checks.OWN) or tensors, first)
