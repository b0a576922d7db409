"""Pruning of visual tokens: a pass of a prompt is cut before the decoder's first layer (at its
door), or between two layers, as the policy's ``prune`` stage selects.

Two index spaces differ. Tensors that the decoder computes once for its layers (position embeddings,
masks, DeepStack's features) have the positions after the cut at the door; hidden states have those
after the latest cut. Masks are not cut: after a cut the attention uses each position's column, and
the mask over all tokens of the pass (``Computed``).
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from foveate.errors import InvalidParameter, MissingModality, UnsupportedModel
from foveate.hf.attention.computed import Computed
from foveate.hf.layer import fixed
from foveate.hf.layer.hooks import wrap
from foveate.hf.layer.state import CacheState
from foveate.hf.layer.support import foveate_layers, state_of
from foveate.hf.model import token_selection
from foveate.hf.model.decoder import DecoderPath
from foveate.hf.model.internals import given_tokens
from foveate.hf.probe.reprefill import keeps_passes, note_computed
from foveate.hf.pruning.repeated_tokens import repeats_of
from foveate.hf.pruning.requirements import RequestedOutputs, layers_of
from foveate.hf.pruning.tower import Tower, reads_tower
from foveate.policies.policy import Policy
from foveate.policies.pruning import EnteringTokens, PixelPrune, TowerAttention
from foveate.policies.spec import print_value


class PassToCut:
    """A pass of a prompt with visual tokens.

    ``columns`` [b, m] are those of the positions that the next layer reads, -1 for padding.
    ``local`` [b, m] are the indices of these positions after the cut at the door; None as long as
    nothing else was cut.
    """

    def __init__(
        self,
        state: CacheState,
        first: int,
        columns: Int[Tensor, "b t"],
        requested: RequestedOutputs,
    ):
        self.state, self.first, self.requested = state, first, requested
        self.columns, self.count = columns, columns.shape[1]
        self.local: Int[Tensor, "b m"] | None = None
        images, vision = state.images(), state.tokens.seen_visual
        if images is None or vision is None:
            raise MissingModality(
                f"{state.policy} drops visual tokens, and the visual tokens are unknown. Pass "
                "input_ids, or compress(..., vision=...)."
            )
        device = columns.device
        span = slice(first, first + self.count)
        text = ~vision[:, span].to(device)  # in streams, text about an image has its number
        self.image, self.spot = (t[:, span].to(device).masked_fill(text, -1) for t in images)
        self.vision = (self.image >= 0) & (columns >= 0)
        self.visual = self.vision.sum(-1)
        self.cut: token_selection.Known = {}
        self.notes: dict[str, Tensor] = {}  # the stage's notes of the remaining positions

    def tokens(
        self,
        layer: int,
        depth: int,
        hidden: Tensor,
        tower: TowerAttention | None = None,
        repeated: Bool[Tensor, "b t"] | None = None,
    ) -> EnteringTokens:
        """Return the tokens that enter a layer, as the stage sees them."""
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
            repeated=repeated,
        )

    def must_go_on(self, tokens: EnteringTokens) -> Bool[Tensor, "b m"]:
        """Mark tokens that are never dropped: text, and all from the prompt's last token on, where
        answers begin.
        """
        end = self.state.turn.end
        last = torch.zeros_like(tokens.vision) if end is None else self.columns >= end - 1
        return (self.columns >= 0) & (~tokens.vision | last)

    def keep(self, layer: int, stays: Bool[Tensor, "b m"]) -> Int[Tensor, "b s"]:
        """Drop the other tokens before ``layer``; return the previous indices of the remaining
        positions.
        """
        dropped = (self.columns >= 0) & ~stays
        of_columns = dropped.new_zeros(len(dropped), self.first + self.count)
        of_columns[dropped.nonzero()[:, 0], self.columns[dropped]] = True
        self.state.tokens = self.state.tokens.drop_before(layer, of_columns)
        longest = max(1, int(stays.sum(-1).max()))
        order = stays.long().argsort(dim=1, stable=True)[:, -longest:]
        self.columns = self.columns.gather(1, order).masked_fill(~stays.gather(1, order), -1)
        self.notes = {name: note.gather(1, order) for name, note in self.notes.items()}
        return order


class Pruner:
    """Pruning of the passes of one model's prompts."""

    def __init__(self, model: PreTrainedModel, path: DecoderPath, policy: Policy):
        self.stage, self.decoder = policy.prune, path.decoder
        self.layers: list[nn.Module] = []
        self.cuts: tuple[int, ...] = ()
        if self.stage is not None:
            self.layers, self.cuts = layers_of(model, path, policy, self.stage)
        self.tower = Tower(model, path, self.stage) if reads_tower(self.stage) else None
        self.repeats = None
        if isinstance(self.stage, PixelPrune):
            if self.cuts != (0,):
                raise InvalidParameter(
                    f"{print_value(self.stage)} drops tokens by their pixels, before layer 0: its "
                    "layers(depth) has to return (0,)."
                )
            self.repeats = repeats_of(model, path, self.stage)
        self._pass: PassToCut | None = None

    def follow(self, undo: ExitStack) -> None:
        """Install the hooks on the decoder's layers, until ``undo`` is closed."""
        if self.tower is not None:
            self.tower.follow(undo)
        if self.repeats is not None:
            self.repeats.follow(undo)
        inside = [index for index in self.cuts if index]
        for index in range(inside[0], len(self.layers)) if inside else ():
            hook = partial(self._before_layer, index)
            module = self.layers[index]
            undo.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        if inside and hasattr(self.decoder, token_selection.DEEPSTACK):
            wrap(undo, self.decoder, token_selection.DEEPSTACK, self._add_features)

    def leave(self) -> None:
        """End the current pass, if there is one."""
        self._pass = None
        if self.repeats is not None:
            self.repeats.start(False)

    def expect(self, cache: Any, is_outermost: bool) -> None:
        """Prepare for a call of the model, or of ``generate``, with this cache: the vision encoder
        may leave patches out if the next pass will be pruned. Its latest images belong to the
        ``is_outermost`` call: ``generate`` may call the encoder before the model.
        """
        if self.repeats is not None:
            if is_outermost:
                self.repeats.begin()
            self.repeats.start(_will_be_pruned(cache))

    @torch.no_grad()
    def note(self, state: CacheState, door: dict[str, Any]) -> None:
        """Store the tokens of the current pass that all layers computed, if it will be read again.
        ``door``: the decoder's inputs.
        """
        cut_pass = self._pass
        if cut_pass is None or state.computed is None or not keeps_passes(state.policy):
            return
        note_computed(
            state,
            door,
            token_selection.embedded(self.decoder, door),
            cut_pass.local,
            cut_pass.columns,
        )

    def enter(
        self, state: CacheState, first: int, requested: RequestedOutputs, kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the inputs of a pass that follows ``first`` tokens, cut if tokens are dropped
        before the first layer.
        """
        end = state.turn.end
        if self.stage is None or end is None or first >= end:
            if self.repeats is not None and self.repeats.waits:
                raise UnsupportedModel(
                    "the vision encoder left patches out, and this pass is not pruned. Use another "
                    "prune stage for it."
                )
            return kwargs
        cut: dict[str, Any] = self._enter(state, first, requested, kwargs)
        return cut

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def _enter(
        self, state: CacheState, first: int, requested: RequestedOutputs, kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        tokens = given_tokens(kwargs)
        rows, count = tokens.shape[:2]
        mask = token_selection.given_mask(kwargs)
        # without padding it equals None, for which no mask over queries and columns is built
        padded = None if token_selection.without_padding(mask) else mask
        pads = state.padding(padded, rows, first, count, tokens.device)
        columns = torch.arange(first, first + count, device=tokens.device).expand(rows, count)
        columns = columns.where(columns >= pads.to(columns.device)[:, None], -1)
        self._pass = cut_pass = PassToCut(state, first, columns, requested)
        if not bool((cut_pass.visual > 0).any()):
            self._pass = None
            return kwargs
        state.needed_by_next = frozenset(index - 1 for index in self.cuts if index)
        if 0 not in self.cuts:
            return kwargs
        hidden = token_selection.embedded(self.decoder, kwargs)
        chosen = self._choose(cut_pass, 0, hidden)
        if chosen is None:
            return kwargs
        order, hidden = chosen
        state.computed = Computed(cut_pass.columns, first, count, at_door=True, mask=mask)
        return token_selection.at_door(kwargs, hidden, order, cut_pass.columns, first)

    def _choose(
        self, cut_pass: PassToCut, layer: int, hidden: Tensor
    ) -> tuple[Int[Tensor, "b s"], Tensor] | None:
        """Return the positions that remain from a layer on, and their hidden states; None if all
        remain.
        """
        tower_attention = (
            self.tower.of(cut_pass.vision) if self.tower is not None and layer == 0 else None
        )
        repeated = None
        if self.repeats is not None:
            hidden, repeated = self.repeats.take(hidden, cut_pass.vision)
        tokens = cut_pass.tokens(layer, len(self.layers), hidden, tower_attention, repeated)
        chosen = cut_pass.state.policy.prune(tokens)  # type: ignore[misc]
        cut_pass.notes = {**cut_pass.notes, **chosen.notes}
        stays = (cut_pass.columns >= 0) & (chosen.goes_on | cut_pass.must_go_on(tokens))
        if self.repeats is not None and repeated is not None:
            self.repeats.check(repeated & stays)
        states = hidden if chosen.hidden is None else chosen.hidden.to(hidden.dtype)
        if bool((stays | (cut_pass.columns < 0)).all()) and states is hidden:
            return None
        cut_pass.requested.check(stays)
        order = cut_pass.keep(layer, stays)
        return order, token_selection.states_at(states, order)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def _before_layer(self, index: int, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Cut a layer's arguments, if its pass was cut before it or is cut now; None leaves them
        unchanged.
        """
        cut_pass = self._pass
        if cut_pass is None or (index not in self.cuts and cut_pass.local is None):
            return None
        hidden, rest = token_selection.named_states(module, args, kwargs)
        if index in self.cuts and (chosen := self._choose(cut_pass, index, hidden)) is not None:
            order, hidden = chosen
            cut_pass.local = order if cut_pass.local is None else cut_pass.local.gather(1, order)
            door = cut_pass.state.computed
            at_door = door is not None and door.at_door
            mask = None if door is None else door.mask
            cut_pass.state.computed = Computed(
                cut_pass.columns, cut_pass.first, cut_pass.count, at_door, mask
            )
        cut_pass.state.before = None
        if cut_pass.local is None:
            return None
        return (hidden,), token_selection.of_layer(rest, cut_pass.local, cut_pass.cut)

    def _add_features(
        self, add: Any, hidden: Tensor, where: Tensor, features: Tensor, *rest: Any
    ) -> Any:
        """Add DeepStack's features of the tower to the remaining visual tokens, after the first
        layers.
        """
        cut_pass = self._pass
        if cut_pass is not None and cut_pass.local is not None:
            where, features = token_selection.features_of(
                where, features, cut_pass.local, cut_pass.columns
            )
        return add(hidden, where, features, *rest)


def _will_be_pruned(cache: Any) -> bool:
    """Return True if a pass with this cache belongs to a prompt: a later one is not compressed."""
    if fixed.state_of(cache) is not None:
        return False
    state = state_of(cache)
    if state is None or state.turn.awaiting:
        return True
    return state.turn.end is not None and foveate_layers(cache)[0].seen < state.turn.end
