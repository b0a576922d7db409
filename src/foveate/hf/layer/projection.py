"""Output projections of a model's attention, for scores that weigh values by them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from foveate.errors import UnsupportedModel
from foveate.hf.model.devices import StoredWeights

EXPAND = "expand_kv"
"""Method of transformers' attention modules from latents to keys and values per head."""

NAMES = ("o_proj", "out_proj", "dense", "c_proj", "wo", "linear_out", "proj_out")
"""Names of the output projection in transformers' attention modules."""


def output_projections(decoder: nn.Module, layers: Sequence[int]) -> dict[int, nn.Module]:
    """Find the output projection of each of these layers of a decoder.

    Raises:
        UnsupportedModel: a projection is not found, not the only one of its layer, or its weight is
            no matrix of floats (quantised, on the meta device, with an adapter).
    """
    projections: dict[int, nn.Module] = {}
    for index, (name, module) in _named_attentions(decoder, layers).items():
        projection = next((getattr(module, n) for n in NAMES if hasattr(module, n)), None)
        if projection is None:
            raise _refused(
                f"{name} ({type(module).__name__}) has none of the names {', '.join(NAMES)}"
            )
        _check(name, projection)
        projections[index] = projection
    return projections


def output_weight(
    projections: Mapping[int, nn.Module], index: int, heads: int, size: int
) -> Float[Tensor, "hq e c"]:
    """Return the weight of a layer's output projection by query head. ``size``: numbers per value.

    Raises:
        UnsupportedModel: it does not project ``heads`` heads of that size.
    """
    projection = projections[index]
    _check(f"that of layer {index}", projection)  # it may have changed inside the context
    weight = _matrix(projection).detach()
    if weight.shape[0] != heads * size:
        raise _refused(
            f"that of layer {index} has {weight.shape[0]} inputs, and {heads} heads of {size} have "
            f"{heads * size}"
        )
    return weight.reshape(heads, size, -1)


def with_latents(decoder: nn.Module) -> dict[int, nn.Module]:
    """Find the attention modules that expand the latents of a cache, by layer."""
    parts = (part for part in decoder.modules() if hasattr(part, EXPAND))
    return {int(part.layer_idx): part for part in parts}  # type: ignore[arg-type]


def residual_readers(decoder: nn.Module, layers: Sequence[int]) -> dict[int, nn.Module]:
    """Find the module around each of these layers' attention that reads the residual stream: the
    outermost one that belongs to this layer only.

    Raises:
        UnsupportedModel: the attention modules are in no list of layers.
    """
    readers: dict[int, nn.Module] = {}
    for name, index, _ in _attentions(decoder, set(layers)):
        parts = name.split(".")
        number = next((i for i, part in enumerate(parts) if part.isdigit()), None)
        if number is None:
            raise _refused(f"{name} is in no list of layers, so its residual stream is unknown")
        readers[index] = decoder.get_submodule(".".join(parts[: number + 1]))
    return readers


def residual_norm(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Float[Tensor, "b m"]:
    """Compute the norm of the hidden states passed to such a module, first or by name; in float32.

    Raises:
        UnsupportedModel: no hidden states were passed.
    """
    norm: Tensor = torch.linalg.vector_norm(hidden_states(args, kwargs).float(), dim=-1)
    return norm


def hidden_states(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Float[Tensor, "b m c"]:
    """Return the hidden states passed to a module, first or by name, without their gradient.

    Raises:
        UnsupportedModel: no hidden states were passed.
    """
    hidden = args[0] if args else kwargs.get("hidden_states")
    if not isinstance(hidden, Tensor) or hidden.ndim != 3:
        raise _refused("the inputs of its layers are no [batch, tokens, hidden] tensors")
    return hidden.detach()


def attention_modules(decoder: nn.Module, layers: Sequence[int]) -> dict[int, nn.Module]:
    """Find the attention module of each of these layers, which reads the layer's hidden states.

    Raises:
        UnsupportedModel: a layer's attention module is not found, or is not its only one.
    """
    return {index: module for index, (_, module) in _named_attentions(decoder, layers).items()}


def _named_attentions(
    decoder: nn.Module, layers: Sequence[int]
) -> dict[int, tuple[str, nn.Module]]:
    """Find name and attention module of each of these layers; see :func:`attention_modules`."""
    by_layer: dict[int, tuple[str, nn.Module]] = {}
    for name, index, module in _attentions(decoder, set(layers)):
        if index in by_layer:
            raise _refused(f"layer {index} has more than one attention module, {name} among them")
        by_layer[index] = name, module
    if missing := sorted(set(layers) - set(by_layer)):
        raise _refused(f"the attention modules of layers {missing} have no layer_idx")
    return by_layer


def _attentions(decoder: nn.Module, layers: set[int]) -> Iterator[tuple[str, int, nn.Module]]:
    """Yield name, layer index and module of these layers' innermost modules that have a
    ``layer_idx``. In layers with other mixers as well, only modules whose class is named attention.
    """
    for name, module in decoder.named_modules():
        index = getattr(module, "layer_idx", None)
        inner = (part for part in module.modules() if part is not module)
        attends = "atten" in type(module).__name__.lower() or hasattr(module, EXPAND)
        if not isinstance(index, int) or index not in layers:
            continue
        if attends and not any(map(_numbered, inner)):
            yield name, index, module


def _numbered(module: nn.Module) -> bool:
    return isinstance(getattr(module, "layer_idx", None), int)


def _check(name: str, projection: nn.Module) -> None:
    weight = _weight(projection)
    plain = isinstance(weight, Tensor) and weight.ndim == 2 and weight.is_floating_point()
    if weight is None or not plain or hasattr(projection, "base_layer"):
        raise _refused(
            f"the projection of {name} is a {type(projection).__name__}, whose weight is no plain "
            "matrix. Merge adapters (merge_and_unload), and load the model unquantised"
        )
    if weight.is_meta:
        raise _refused(f"the projection of {name} is on the meta device. Load it into memory")


def _weight(projection: nn.Module) -> Tensor | None:
    """Return the weight of a projection, also if accelerate has offloaded it; None without one."""
    weight: Tensor | None = getattr(projection, "weight", None)
    if isinstance(weight, Tensor) and weight.is_meta:
        return dict(StoredWeights.of(projection).own).get("weight", weight)
    return weight


def _matrix(projection: nn.Module) -> Float[Tensor, "i o"]:
    """Return the weight as a matrix from input to output: GPT-2's Conv1D stores it so, a Linear
    transposed.
    """
    weight: Tensor = _weight(projection)  # type: ignore[assignment]
    return weight if type(projection).__name__ == "Conv1D" else weight.T


def _refused(why: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"this policy reads the attention's output projection or its inputs, and {why}."
    )
