"""Checks of models and calls: those whose visual tokens can be dropped, and the reasons against
others.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxtyping import Bool
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from foveate.errors import InvalidInput, InvalidParameter, UnsupportedModel
from foveate.hf.layer.support import compressible_layers, shares_pairs, text_config
from foveate.hf.model.decoder import DecoderPath, layer_stacks
from foveate.hf.model.internals import LOGITS, IndexedLayer
from foveate.policies.policy import Policy
from foveate.policies.pruning import Prune
from foveate.policies.spec import print_value

_OF_ALL = {
    "labels": "a loss is of all tokens",
    "output_hidden_states": "layers have hidden states of different numbers of tokens",
    "output_attentions": "layers have attentions of different numbers of tokens",
    "output_router_logits": "layers have router logits of different numbers of tokens",
}
"""Outputs that dropped tokens do not have, with the reason why a call cannot request them."""


class RequestedOutputs(NamedTuple):
    """Outputs of all tokens that a call requests: by name, and the number of last tokens with
    logits (0: all; None: only the last token's are used).
    """

    names: tuple[str, ...] = ()
    logits: int | None = None

    @classmethod
    def of(cls, module: nn.Module, inputs: Mapping[str, Any], last_only: bool) -> RequestedOutputs:
        """Return the requests of a call of the model. ``last_only``: the caller uses only the last
        token's logits, as ``generate`` does.
        """
        names = tuple(name for name in _OF_ALL if _wants(module, inputs, name))
        if last_only:
            return cls(names)
        able = LOGITS in inspect.signature(module.forward).parameters
        logits = inputs.get(LOGITS, 0) if able else 0
        return cls(names, logits if isinstance(logits, int) else 0)

    def check(self, stays: Bool[Tensor, "b t"]) -> None:
        """Raise InvalidInput for outputs of tokens that will be dropped. ``stays``: tokens that
        remain.
        """
        for name in self.names:
            raise InvalidInput(
                f"{name} was requested, and {_OF_ALL[name]} once some are dropped. Leave it out, "
                "or leave out the policy's prune stage."
            )
        if self.logits is None:
            return
        if self.logits == 0 or not bool(stays[:, -self.logits :].any(0).all()):
            which = "all tokens" if self.logits == 0 else f"the last {self.logits} tokens"
            raise InvalidInput(
                f"logits of {which} were requested, and some of these are dropped before they are "
                f"computed. Use generate() or session.prefill(), or pass {LOGITS}=1, or leave the "
                "prune stage out of the policy."
            )


def _wants(module: nn.Module, inputs: Mapping[str, Any], name: str) -> bool:
    """Return True if a call, or the model's configuration, requests an output."""
    value = inputs.get(name)
    if value is None and name != "labels":
        value = getattr(getattr(module, "config", None), name, None)
    return isinstance(value, Tensor) or bool(value)


def layers_of(
    model: PreTrainedModel, path: DecoderPath, policy: Policy, stage: Prune
) -> tuple[list[nn.Module], tuple[int, ...]]:
    """Return the decoder's layers, and the indices of those before which tokens are dropped.

    Raises:
        InvalidParameter: a layer that the model does not have, or a policy with questions after a
            part of the prompt.
        UnsupportedModel: tokens cannot be dropped from it exactly; the message has the reason.
    """
    config = text_config(model)
    stacks = layer_stacks(model, config)
    layers = list(model.get_submodule(stacks[0])) if len(stacks) == 1 else []  # type: ignore[call-overload]
    cuts, spec = tuple(sorted(set(stage.layers(len(layers))))), print_value(stage)
    for reason in _reasons(model, path, layers, cuts):
        raise UnsupportedModel(
            f"{spec} cannot drop visual tokens of a {type(model).__name__}: {reason}"
        )
    if not cuts or cuts[-1] >= len(layers):
        raise InvalidParameter(
            f"{spec} drops tokens before layer {cuts[-1] if cuts else '?'}, and this model has the "
            f"layers 0 to {len(layers) - 1}."
        )
    rereading = policy.reads_again
    if rereading is not None and rereading.reading.questions:
        raise InvalidParameter(
            f"{policy.score!r} asks questions after a part of the prompt, and {spec} leaves parts "
            "of it uncomputed. Use another method, or leave the prune stage out."
        )
    return layers, cuts


def _reasons(
    model: PreTrainedModel, path: DecoderPath, layers: list[nn.Module], cuts: tuple[int, ...]
) -> list[str]:
    config = text_config(model)
    if not layers or path.decoder is model:
        return ["its decoder's layers were not found."]
    if getattr(config, "cross_attention_layers", None):
        return ["its images are read by cross-attention, and are no tokens of the prompt."]
    if shares_pairs(config):
        return ["some of its layers read the keys and values of others (as in Gemma 3n)."]
    compressible, kinds = set(compressible_layers(config)), DynamicCache(config=config).layers
    if IndexedLayer in map(type, kinds):
        return ["its layers' indexers choose among all tokens, also among uncomputed ones."]
    first = cuts[0] if cuts else 0
    for index, kind in enumerate(kinds):
        name = type(kind).__name__
        if index >= first and (index not in compressible or "Linear" in name):
            return [
                f"layer {index}, which comes after the cut, has no full attention ({name}): a "
                "window counts tokens, and a recurrent or convolution state includes all of them, "
                "so both change if some are dropped. Drop tokens before a later layer, if all "
                "layers after it have full attention."
            ]
    return []
