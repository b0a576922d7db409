"""Adapter that makes scorers of NVIDIA's kvpress into scores."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from foveate.cache.layer import Layer, Scores
from foveate.errors import InvalidParameter
from foveate.policies.spec import stage
from foveate.stages.score.attention_rows import rows

# errors of presses that need the model, hidden states or positions, which they do not get here
_LACKING = (AttributeError, KeyError, AssertionError, NotImplementedError, TypeError, ValueError)


@stage("kvpress")
class FromKvpress:
    """Score of a kvpress ``ScorerPress`` that needs keys, values and attention alone.

    With ``attention`` the press gets the full attention matrix of the prompt, [1, hq, n, n] in
    float32, which such presses otherwise compute from hidden states (SnapKVPress, TOVAPress) or
    require (ObservedAttentionPress). Rows of a batch are scored one by one, without their padding.
    The press's ``compression_ratio`` is not used: the policy's budget sets how much is kept. A
    policy with this score prints, but its spec does not parse back.

    Of kvpress 0.5.5 these work: CURPress, KeyDiffPress, KnormPress, LagKVPress, RandomPress and
    StreamingLLMPress; with ``attention`` also ObservedAttentionPress, PyramidKVPress, SnapKVPress
    and TOVAPress. Others need hidden states or the model's projections and are refused.

        policy = foveate.knorm(budget="20%").but(score=FromKvpress(press=LagKVPress()))
    """

    press: Any
    attention: bool = False

    def __post_init__(self) -> None:
        if not callable(getattr(self.press, "score", None)):
            raise InvalidParameter(
                f"press={self.press!r} has no method score(module, hidden_states, keys, values, "
                "attentions, kwargs): give an object such as kvpress.KnormPress()."
            )

    def queries(self, tokens: int) -> int:
        return 2**31 if self.attention else 0

    def __call__(self, layer: Layer) -> Scores:
        scores = layer.k.new_zeros(layer.pos.shape, dtype=torch.float32)
        matrix = self._matrix(layer) if self.attention else None
        for row, length in enumerate(layer.valid[:, 0].sum(-1).tolist()):
            first = layer.pos.shape[2] - length
            part = None if matrix is None else matrix[row : row + 1, :, first:, first:]
            k, v = (x[row : row + 1, :, first:] for x in (layer.k, layer.v))
            scores[row, :, first:] = self._score(layer, k, v, part)[0].float()
        return Scores(scores)

    def _matrix(self, layer: Layer) -> Float[Tensor, "b hq m n"]:
        b, hq, m, _ = layer.q.shape
        n = layer.k.shape[2]
        if m != n:
            raise InvalidParameter(
                f"{type(self.press).__name__} needs the attention of a whole prompt, and there are "
                f"{m} queries for {n} slots: compress once, after the prefill."
            )
        return torch.cat([paid.reshape(b, hq, -1, n) for _, paid in rows(layer)], dim=2)

    def _score(
        self,
        layer: Layer,
        k: Float[Tensor, "1 h n d"],
        v: Float[Tensor, "1 h n e"],
        attention: Float[Tensor, "1 hq n n"] | None,
    ) -> Float[Tensor, "1 h n"]:
        h, n, d = k.shape[1:]
        config = SimpleNamespace(num_attention_heads=h * layer.groups, num_key_value_heads=h)
        module = SimpleNamespace(config=config, head_dim=d, layer_idx=layer.number)
        hidden = k.new_zeros(1, n, 1, dtype=torch.float32)  # presses may only use its length
        try:
            scores: Tensor = self.press.score(module, hidden, k, v, attention, {})
        except _LACKING as error:
            raise InvalidParameter(
                f"{type(self.press).__name__} needs more than keys and values"
                f"{' and attention' if self.attention else ': try attention=True'} ({error!r})."
            ) from error
        if scores.shape != (1, h, n):
            raise InvalidParameter(
                f"{type(self.press).__name__} gave scores of shape {tuple(scores.shape)}, expected "
                f"{(1, h, n)}."
            )
        return scores
