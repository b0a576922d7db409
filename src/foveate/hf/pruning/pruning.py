"""Visual tokens that are never computed: a pass of a prompt is cut at the decoder's door, or
between two of its layers, as the stage ``prune`` of the policy says.

Two spaces of places have to be told apart. What the decoder keeps for itself while its layers run
(position embeddings, masks, DeepStack's features) has the places of its door; the hidden states
that go from layer to layer have those of the latest cut. Masks are not cut: below a cut the
attention goes by each place's column, and by the mask over all tokens given (``Computed``).
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from foveate.errors import MissingModality
from foveate.hf.attention.computed import Computed
from foveate.hf.layer.hooks import wrap
from foveate.hf.layer.state import CacheState
from foveate.hf.model import cutting
from foveate.hf.model.decoder import DecoderPath
from foveate.hf.model.internals import given_tokens
from foveate.hf.probe.reprefill import keeps_passes, note_computed
from foveate.hf.pruning.prunable import RequestedOutputs, layers_of
from foveate.hf.pruning.tower import Tower, reads_tower
from foveate.policies.policy import Policy
from foveate.policies.pruning import EnteringTokens, TowerAttention


class PassToCut:
    """A pass of a prompt with visual tokens. ``columns`` [b, m] are those of the places that the
    next layer reads, -1 where one stands for none; ``local`` [b, m] is where each of them stands
    among the places that the decoder has for itself, None as long as these are the same.
    """

    def __init__(
        self,
        state: CacheState,
        first: int,
        columns: Int[Tensor, "b t"],
        requested: RequestedOutputs,
    ):
        self.state, self.first, self.requested = state, first, requested
        self.columns, self.given = columns, columns.shape[1]
        self.local: Int[Tensor, "b m"] | None = None
        images, vision = state.images(), state.tokens.seen_visual
        if images is None or vision is None:
            raise MissingModality(
                f"{state.policy} drops visual tokens, and nothing tells which tokens are visual. "
                "Pass input_ids, or compress(..., vision=...)."
            )
        device = columns.device
        now = slice(first, first + self.given)
        words = ~vision[:, now].to(device)  # which in streams belong to the image that they are of
        self.image, self.spot = (t[:, now].to(device).masked_fill(words, -1) for t in images)
        self.vision = (self.image >= 0) & (columns >= 0)
        self.visual = self.vision.sum(-1)
        self.cut: cutting.Known = {}
        self.notes: dict[str, Tensor] = {}  # of the stage, of the places that go on

    def tokens(
        self, layer: int, depth: int, hidden: Tensor, tower: TowerAttention | None = None
    ) -> EnteringTokens:
        """What the stage is shown."""
        pads = self.state.tokens.padding(self.columns)[:, None]
        index, real = (self.columns - self.first).clamp_min(0), self.columns >= 0
        image, spot = (t.gather(1, index).masked_fill(~real, -1) for t in (self.image, self.spot))
        return EnteringTokens(
            layer=layer,
            depth=depth,
            hidden=hidden,
            pos=torch.where(real, self.columns - pads, -1),
            image=image,
            spot=spot,
            visual_tokens=self.visual,
            before=self.state.before if layer else None,
            notes=self.notes,
            tower=tower,
        )

    def must_go_on(self, tokens: EnteringTokens) -> Bool[Tensor, "b m"]:
        """Text, and from the prompt's last token on everything: answers begin there."""
        end = self.state.turn.end
        last = torch.zeros_like(tokens.vision) if end is None else self.columns >= end - 1
        return (self.columns >= 0) & (~tokens.vision | last)

    def keep(self, layer: int, stays: Bool[Tensor, "b m"]) -> Int[Tensor, "b s"]:
        """From this layer on these alone; returns which place each of the places left had."""
        dropped = (self.columns >= 0) & ~stays
        of_columns = dropped.new_zeros(len(dropped), self.first + self.given)
        of_columns[dropped.nonzero()[:, 0], self.columns[dropped]] = True
        self.state.tokens = self.state.tokens.drop_before(layer, of_columns)
        longest = max(1, int(stays.sum(-1).max()))
        order = stays.long().argsort(dim=1, stable=True)[:, -longest:]
        self.columns = self.columns.gather(1, order).masked_fill(~stays.gather(1, order), -1)
        self.notes = {name: each.gather(1, order) for name, each in self.notes.items()}
        return order


class Pruner:
    """Cuts the passes of one model's prompts."""

    def __init__(self, model: PreTrainedModel, place: DecoderPath, policy: Policy):
        self.stage, self.decoder = policy.prune, place.decoder
        self.layers: list[nn.Module] = []
        self.cuts: tuple[int, ...] = ()
        if self.stage is not None:
            self.layers, self.cuts = layers_of(model, place, policy, self.stage)
        self.tower = Tower(model, place, self.stage) if reads_tower(self.stage) else None
        self._pass: PassToCut | None = None

    def follow(self, undo: ExitStack) -> None:
        """From now on layers are told of their pass, until it is undone."""
        if self.tower is not None:
            self.tower.follow(undo)
        inside = [index for index in self.cuts if index]
        for index in range(inside[0], len(self.layers)) if inside else ():
            hook = partial(self._before_layer, index)
            module = self.layers[index]
            undo.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        if inside and hasattr(self.decoder, cutting.DEEPSTACK):
            wrap(undo, self.decoder, cutting.DEEPSTACK, self._add_features)

    def leave(self) -> None:
        """The pass at hand is over, or none is."""
        self._pass = None

    @torch.no_grad()
    def note(self, state: CacheState, door: dict[str, Any]) -> None:
        """What all layers computed of the pass at hand, where it will be read again. ``door`` is
        what the decoder was given of it.
        """
        at = self._pass
        if at is None or state.computed is None or not keeps_passes(state.policy):
            return
        note_computed(state, door, cutting.embedded(self.decoder, door), at.local, at.columns)

    def enter(
        self, state: CacheState, first: int, requested: RequestedOutputs, kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """The inputs of a pass that is about to be read after ``first`` tokens, cut where tokens
        are dropped before the first layer.
        """
        end = state.turn.end
        if self.stage is None or end is None or first >= end:
            return kwargs
        cut: dict[str, Any] = self._enter(state, first, requested, kwargs)
        return cut

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def _enter(
        self, state: CacheState, first: int, requested: RequestedOutputs, kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        given = given_tokens(kwargs)
        rows, count = given.shape[:2]
        mask = cutting.given_mask(kwargs)
        # where nothing is padded it says no more than None, whose square of places is never made
        padded = None if cutting.without_padding(mask) else mask
        pads = state.padding(padded, rows, first, count, given.device)
        columns = torch.arange(first, first + count, device=given.device).expand(rows, count)
        columns = columns.where(columns >= pads.to(columns.device)[:, None], -1)
        self._pass = at = PassToCut(state, first, columns, requested)
        if not bool((at.visual > 0).any()):
            self._pass = None
            return kwargs
        state.asks_before = frozenset(index - 1 for index in self.cuts if index)
        if 0 not in self.cuts:
            return kwargs
        hidden = cutting.embedded(self.decoder, kwargs)
        chosen = self._chosen(at, 0, hidden)
        if chosen is None:
            return kwargs
        order, hidden = chosen
        state.computed = Computed(at.columns, first, count, at_door=True, mask=mask)
        return cutting.at_door(kwargs, hidden, order, at.columns, first)

    def _chosen(
        self, at: PassToCut, layer: int, hidden: Tensor
    ) -> tuple[Int[Tensor, "b s"], Tensor] | None:
        """Which places go on from a layer on, and their hidden states; None if all do."""
        looked = self.tower.of(at.vision) if self.tower is not None and layer == 0 else None
        tokens = at.tokens(layer, len(self.layers), hidden, looked)
        chosen = at.state.policy.prune(tokens)  # type: ignore[misc]
        at.notes = {**at.notes, **chosen.notes}
        stays = (at.columns >= 0) & (chosen.goes_on | at.must_go_on(tokens))
        states = hidden if chosen.hidden is None else chosen.hidden.to(hidden.dtype)
        if bool((stays | (at.columns < 0)).all()) and states is hidden:
            return None
        at.requested.check(stays)
        order = at.keep(layer, stays)
        return order, cutting.states_at(states, order)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def _before_layer(self, index: int, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """What a layer is called with, where its pass was cut before it or is cut now."""
        at = self._pass
        if at is None or (index not in self.cuts and at.local is None):
            return None
        hidden, rest = cutting.named_states(module, args, kwargs)
        if index in self.cuts and (chosen := self._chosen(at, index, hidden)) is not None:
            order, hidden = chosen
            at.local = order if at.local is None else at.local.gather(1, order)
            door = at.state.computed
            at_door = door is not None and door.at_door
            mask = None if door is None else door.mask
            at.state.computed = Computed(at.columns, at.first, at.given, at_door, mask)
        at.state.before = None
        if at.local is None:
            return None
        return (hidden,), cutting.of_layer(rest, at.local, at.cut)

    def _add_features(
        self, add: Any, hidden: Tensor, where: Tensor, features: Tensor, *more: Any
    ) -> Any:
        """DeepStack: features of the tower, added after the first layers to the tokens of which
        they are.
        """
        at = self._pass
        if at is not None and at.local is not None:
            where, features = cutting.features_of(where, features, at.local, at.columns)
        return add(hidden, where, features, *more)
