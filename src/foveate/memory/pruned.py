"""Prefill on the "meta" device with some visual tokens pruned: as many enter each layer as the
stage ``prune`` of a policy declares beforehand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from foveate.hf.layer.hooks import wrap
from foveate.hf.layer.support import text_config
from foveate.hf.model import token_selection
from foveate.hf.model.decoder import find
from foveate.hf.model.modality import visual_token_ids
from foveate.hf.pruning.requirements import layers_of
from foveate.hf.pruning.tower import Tower, reads_tower
from foveate.memory.model import Bare
from foveate.memory.request import Unknown
from foveate.policies.policy import Policy
from foveate.policies.pruning import ForeseeablePrune
from foveate.policies.spec import print_value

_MASK = "attention_mask"


class PrefillCut:
    """Cut of a prefill. Text and the first visual tokens are kept, as only their number matters
    here. ``_local`` are the kept positions among those that entered the decoder.

    Attributes:
        computed: tokens of a row that each layer reads, set by :meth:`over`.
    """

    def __init__(self, bare: Bare, policy: Policy):
        """Prepare the cut for a policy.

        Raises:
            Unknown: the number of kept tokens depends on a prompt's scores.
            UnsupportedModel, InvalidParameter: the policy cannot prune this model.
        """
        stage = policy.prune
        if not isinstance(stage, ForeseeablePrune):
            spec = print_value(stage)
            raise Unknown(
                f"{spec} does not declare beforehand how many visual tokens it keeps (`counts`)"
            )
        location = find(bare.model, text_config(bare.model))
        self._layers, _ = layers_of(bare.model, location, policy, stage)
        if reads_tower(stage):
            Tower(bare.model, location, stage)  # only to refuse unknown towers
        self._decoder, self._config, self._stage = location.decoder, bare.config, stage

    @contextmanager
    def over(self, input_ids: Int[Tensor, "b t"], images: Sequence[int]) -> Iterator[None]:
        """Cut passes of a prompt with these ids, whose images have that many tokens each."""
        depth = len(self._layers)
        cuts = zip(self._stage.layers(depth), self._stage.counts(depth, images), strict=True)
        self._counts = dict[int, int](cuts) if sum(images) else {}
        ids = input_ids.new_tensor(visual_token_ids(self._config))
        self._visual: Bool[Tensor, "b n"] = torch.isin(input_ids, ids)
        self._local: Int[Tensor, "b m"] | None = None
        self._known: token_selection.Known = {}
        self._reads = False  # True in the prompt's pass: a tower may consist of decoder layers too
        self.computed = tuple(self._numbers(input_ids.shape[1], sum(images)))
        with ExitStack() as undo:
            for index, module in enumerate(self._layers):
                cut = partial(self._before_layer, index)
                undo.callback(module.register_forward_pre_hook(cut, with_kwargs=True).remove)
            hook = self._decoder.register_forward_pre_hook(self._before_decoder, with_kwargs=True)
            undo.callback(hook.remove)
            if hasattr(self._decoder, token_selection.DEEPSTACK):
                wrap(undo, self._decoder, token_selection.DEEPSTACK, self._add_features)
            yield

    def _numbers(self, tokens: int, visual: int) -> Iterator[int]:
        left = visual
        for index in range(len(self._layers)):
            left = min(left, self._counts.get(index, left))
            yield tokens - visual + left

    def _select_positions(self, index: int) -> Int[Tensor, "b m"]:
        """Return the positions that enter a layer, and drop the others."""
        stays: Bool[Tensor, "b m"] = ~self._visual
        stays |= self._visual.cumsum(-1) <= self._counts[index]
        order = stays[0].nonzero()[:, 0].expand(len(stays), -1)
        self._visual = self._visual.gather(1, order)
        return order

    def _before_decoder(self, decoder: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        hidden = token_selection.embedded(decoder, kwargs)
        self._reads = hidden.shape[1] == self._visual.shape[1]
        if not self._reads or 0 not in self._counts:
            return None
        order = self._select_positions(0)
        return args, {
            **token_selection.at_places(
                kwargs, token_selection.states_at(hidden, order), order, order
            ),
            _MASK: None,
        }

    def _before_layer(self, index: int, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if not self._reads or not index:
            return None
        hidden, rest = token_selection.named_states(module, args, kwargs)
        if index in self._counts:
            order = self._select_positions(index)
            hidden = token_selection.states_at(hidden, order)
            self._local = order if self._local is None else self._local.gather(1, order)
        if self._local is None:
            return None
        layer_kwargs = token_selection.of_layer(rest, self._local, self._known)
        mask, count = layer_kwargs.get(_MASK), hidden.shape[1]
        if isinstance(mask, Tensor) and mask.ndim == 4:  # a view, as the model's mask exists anyway
            layer_kwargs[_MASK] = mask[:, :, :count, :count]
        return (hidden,), layer_kwargs

    def _add_features(
        self, add: Any, hidden: Tensor, where: Tensor, features: Tensor, *more: Any
    ) -> Any:
        if self._local is not None:
            where, features = token_selection.features_of(where, features, self._local, self._local)
        return add(hidden, where, features, *more)
