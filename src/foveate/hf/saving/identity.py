"""Identity of a model: a saved cache can only be loaded by a model with the same one.

Two models are the same if configuration, weights, active adapters and quantisation are. Names of
adapters, the attention implementation and exact casts of the weights make no difference.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import PreTrainedModel

from foveate.errors import UnsupportedModel
from foveate.hf.layer.support import text_config
from foveate.hf.model.decoder import find
from foveate.hf.model.devices import StoredWeights
from foveate.hf.model.weights import applied_weights

SAMPLES = 64
"""Numbers of each weight that are compared, at even distances."""

_QUANTISATION = "quantization_config"

_VOLATILE = {
    # compared on its own
    _QUANTISATION,
    # written by saving and loading a model
    "_name_or_path",
    "architectures",
    "transformers_version",
    "dtype",
    "torch_dtype",
    # without effect on keys and values
    "use_cache",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
}
"""Entries of a configuration that saved caches do not depend on."""


class ModelIdentity(NamedTuple):
    """The properties of a model that a saved cache depends on.

    Attributes: weights: digest of the configuration and the weights, adapters left out. adapters:
    digest of each active adapter's weights and scaling, by its name. quantisation: the
    configuration's ``quantization_config``; empty without one. dtype: dtype of the decoder's
    weights, such as "bfloat16"; empty if none is floating-point.
    """

    weights: str
    adapters: Mapping[str, str]
    quantisation: Mapping[str, Any]
    dtype: str

    @classmethod
    def of(cls, model: PreTrainedModel) -> ModelIdentity:
        """Return the identity of a model as it is now.

        Raises:
            UnsupportedModel: some of its weights have no data (on the meta device).
        """
        own, adapters = applied_weights(model)
        config = json.dumps(
            _without(model.config.to_dict(), _VOLATILE), sort_keys=True, default=str
        )
        return cls(
            _digest((config, type(model).__name__), own),
            {name: _digest((), weights) for name, weights in adapters.items()},
            _quantisation(model),
            decoder_dtype(model),
        )

    @classmethod
    def from_json(cls, text: str) -> ModelIdentity:
        """Return the identity that ``as_json`` wrote; raises ValueError for any other text."""
        fields = json.loads(text)
        kinds = dict(zip(cls._fields, (str, dict, dict, str), strict=True))
        if not isinstance(fields, dict) or {k: type(x) for k, x in fields.items()} != kinds:
            raise ValueError(f"{text[:80]!r} is no {' and '.join(cls._fields)}")
        return cls(**fields)

    @property
    def as_json(self) -> str:
        """The identity as JSON text."""
        return json.dumps(self._asdict(), sort_keys=True)

    def differences(self, saved: ModelIdentity) -> list[str]:
        """Describe the differences from the model of a saved file; the dtype alone is no
        difference.
        """
        clauses = []
        if sorted(self.adapters.values()) != sorted(saved.adapters.values()):
            clauses.append(
                f"its active adapters were {_named(saved.adapters)}, this model's are "
                f"{_named(self.adapters)}"
            )
        if self.quantisation != saved.quantisation:
            a, b = dict(saved.quantisation), dict(self.quantisation)
            clauses.append(f"its quantisation was {_format(a, b)}, this model's is {_format(b, a)}")
        if self.weights != saved.weights:
            other = "it had another configuration or other weights"
            if self.dtype != saved.dtype:
                other += (
                    f" (its dtype was {saved.dtype or 'unknown'}, this model's is "
                    f"{self.dtype or 'unknown'}, and a cast may have rounded the weights)"
                )
            clauses.append(other)
        return clauses


def decoder_dtype(model: PreTrainedModel) -> str:
    """Return the dtype of the decoder's floating-point weights; empty if it has none."""
    for weight in find(model, text_config(model)).decoder.parameters():
        if weight.is_floating_point():
            return str(weight.dtype).removeprefix("torch.")
    return ""


def _digest(texts: Iterable[str], weights: Mapping[str, Tensor | str]) -> str:
    hashed = hashlib.sha256(json.dumps([*texts]).encode())
    for name, weight in sorted(weights.items()):
        if isinstance(weight, str):
            hashed.update(f"{name}{weight}".encode())
            continue
        for part in _plain(weight):
            if part.is_meta:
                raise UnsupportedModel(
                    f"the weight {name!r} is on the meta device, which holds no numbers. Load the "
                    "model with from_pretrained()."
                )
            hashed.update(f"{name}{tuple(part.shape)}".encode())
            hashed.update(_samples(part).numpy().tobytes())
    return hashed.hexdigest()


def _plain(weight: Any) -> Iterator[Tensor]:
    """Yield the tensors inside a weight that is a subclass (torchao's), or the weight itself."""
    if not is_traceable_wrapper_subclass(weight):
        yield weight
        return
    for name in weight.__tensor_flatten__()[0]:
        yield from _plain(getattr(weight, name))


@torch.no_grad()
def _samples(weight: Tensor) -> Tensor:
    """Return some numbers of a weight in float64, which is exact for the shorter types."""
    flat = weight.detach().flatten()
    return flat[:: max(1, len(flat) // SAMPLES)].cpu().double()


def _without(config: Mapping[Any, Any], names: Collection[str]) -> dict[Any, Any]:
    """Return a configuration, and those inside it, without some names."""
    return {
        name: _without(value, names) if isinstance(value, dict) else value
        for name, value in config.items()
        if name not in names
    }


def _quantisation(model: PreTrainedModel) -> dict[str, Any]:
    for config in (model.config, text_config(model)):
        settings: Any = getattr(config, _QUANTISATION, None)
        if settings:
            entries = settings if isinstance(settings, dict) else settings.to_dict()
            return dict(json.loads(json.dumps(entries, default=str)))
    return {}


def _named(adapters: Mapping[str, str]) -> str:
    return ", ".join(f"{name!r} ({hex_[:8]})" for name, hex_ in adapters.items()) or "none"


def _format(entries: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Format a quantisation's method and those settings that differ from another's."""
    if not entries:
        return "none"
    differing = {k: v for k, v in entries.items() if k == "quant_method" or other.get(k) != v}
    return json.dumps(differing, sort_keys=True)


# Fingerprints in files of schema 1 and 2


def former_fingerprints(model: PreTrainedModel) -> set[str]:
    """Return the fingerprints that earlier versions wrote of this model."""
    names = {"_name_or_path", "architectures", "transformers_version", "dtype", "torch_dtype"}
    config = model.config.to_dict()
    first = {k: x for k, x in config.items() if k not in names or k == "architectures"}
    return {
        _former_fingerprint(model, _without(config, names), type(model).__name__),
        _former_fingerprint(model, first, ""),
    }


def _former_fingerprint(model: nn.Module, config: Mapping[Any, Any], kind: str) -> str:
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    digest.update(kind.encode())
    weights = dict(StoredWeights.of(model).all())
    for name, weight in sorted(model.named_parameters()):
        digest.update(f"{name}{tuple(weight.shape)}".encode())
        digest.update(weights[name].detach().flatten()[:16].float().cpu().numpy().tobytes())
    return digest.hexdigest()
