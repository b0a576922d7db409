"""Kept tokens and answers of several policies on one prompt, which is read once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from transformers import PreTrainedModel

from foveate.hf import Recording, Session, branch, chosen, compress, record
from foveate.hf.attach.model_policy import divided_for
from foveate.hf.layer.support import compressible_layers, text_config
from foveate.hf.measuring.answer import greedy
from foveate.hf.probe.questions import ends
from foveate.methods.full import full
from foveate.policies.policy import Policy
from foveate.policies.pruning import Prune


class Choice(NamedTuple):
    """Kept tokens of one policy. Rows are KV heads, layer by layer; t counts tokens.

    ``scores`` are as in :class:`foveate.Kept`: +inf for a protected token, NaN without a score, if
    everything fits the budget or the layer never computed the token. ``computed`` is True for
    tokens that the layer computed, so evicted tokens differ from pruned ones; None if all layers
    computed all tokens.
    """

    policy: Policy
    kept: Bool[Tensor, "r t"]
    scores: Float[Tensor, "r t"]
    computed: Bool[Tensor, "r t"] | None = None


class LensPrompt(NamedTuple):
    """Kept tokens of a prompt under all policies: for each method, one choice per budget.

    ``layers`` are the model's indices of the compressed layers, ``heads`` their numbers of KV
    heads.
    """

    layers: list[int]
    heads: list[int]
    choices: list[list[Choice]]


@dataclass(frozen=True)
class Readings:
    """Prompt with its recorded forward passes, one for each way in which policies read it.

    Policies that need column sums share a pass whose attention computes them; others share one
    without, and likewise for hidden states. So each policy keeps exactly what it keeps in its own
    ``compress()`` context.
    """

    model: PreTrainedModel
    inputs: Mapping[str, Any]
    _read: dict[tuple[bool, bool, Prune | None], Recording] = field(
        default_factory=dict, repr=False
    )

    def of(self, policy: Policy) -> Recording:
        """Return the recording that fits a policy; the pass runs at the first request."""
        tokens = self.inputs["input_ids"].shape[1]
        prune = divided_for(self.model, policy, [tokens]).prune
        kind = sums, hidden, _ = policy.reads_column_sums, policy.reads_hidden_states, prune
        if kind not in self._read:
            more = {"sums": sums, "hidden": hidden, "prune": prune}
            self._read[kind] = record(self.model, **more, **self.inputs)
        return self._read[kind]


def seen(
    readings: Readings, policies: Sequence[Sequence[Policy]], tokenizer: Any = None
) -> LensPrompt:
    """Return what every policy keeps of the prompt."""
    model = readings.model

    def choice(policy: Policy) -> Choice:
        return _choice(compress(model, policy, tokenizer=tokenizer), readings.of(policy))

    choices = [[choice(policy) for policy in method] for method in policies]
    layers = readings.of(policies[0][0]).layers
    heads = [layer.k.shape[1] for layer in layers]
    return LensPrompt(compressible_layers(text_config(model)), heads, choices)


def _choice(context: Session, recording: Recording) -> Choice:
    with context as session:
        kept = chosen(session, recording)
    pos = [layer.pos[0] for layer in recording.layers]

    def over_tokens(layers: Sequence[Tensor], default: float | bool) -> Tensor:
        pairs = zip(layers, pos, strict=True)
        return torch.cat([_spread(t[0], at, recording.tokens, default) for t, at in pairs]).cpu()

    masks = [layer.mask for layer in kept]
    unscored = [mask.float().fill_(torch.nan) for mask in masks]
    scores = [b if a.scores is None else a.scores for a, b in zip(kept, unscored, strict=True)]
    computed = None
    if session.policy.prune is not None:
        computed = over_tokens([torch.ones_like(mask) for mask in masks], False)
    return Choice(
        session.policy, over_tokens(masks, False), over_tokens(scores, torch.nan), computed
    )


def _spread(
    slots: Shaped[Tensor, "h n"], pos: Int[Tensor, "h n"], tokens: int, default: float | bool
) -> Shaped[Tensor, "h t"]:
    """Spread values of slots to tokens; ``default`` for tokens that the layer never computed."""
    if slots.shape[1] == tokens:
        return slots
    spread = torch.full((len(slots), tokens), default, dtype=slots.dtype, device=slots.device)
    return spread.scatter(1, pos, slots)


class LensAnswer(NamedTuple):
    """Answer under one policy.

    ``tokens`` include the end token, ``text`` has no special tokens. ``cut`` is True if the length
    limit ended it, ``same`` if its tokens equal the full cache's answer.
    """

    spec: str
    tokens: list[int]
    text: str
    cut: bool
    same: bool


class Answers(NamedTuple):
    """Answers: the full cache's, and one for each method at each of its budgets."""

    full: LensAnswer
    choices: list[list[LensAnswer]]


Progress = Callable[[Policy, int, int], None]
"""Progress callback, called before each answer: its policy, answers so far, answers in all."""


def answers(
    readings: Readings,
    policies: Sequence[Sequence[Policy]],
    reader: Any,
    longest: int,
    report: Progress = lambda policy, done, of: None,
) -> Answers:
    """Generate greedy answers of at most ``longest`` tokens.

    Each continues from the recording that its policy chooses from, so it equals the answer in the
    policy's own ``compress()`` context.
    """
    full_cache, tokenizer = full(), getattr(reader, "tokenizer", reader)
    order = [full_cache, *(policy for method in policies for policy in method)]
    answers_by_spec: dict[str, list[int]] = {}
    for done, policy in enumerate(order):
        if policy.spec not in answers_by_spec:
            report(policy, done, len(order))
            answers_by_spec[policy.spec] = _tokens(readings, policy, reader, longest)
    stop = ends(readings.model)

    def answer(policy: Policy) -> LensAnswer:
        tokens = answers_by_spec[policy.spec]
        text = tokenizer.decode(tokens, skip_special_tokens=True).strip()
        same = tokens == answers_by_spec[full_cache.spec]
        return LensAnswer(policy.spec, tokens, text, tokens[-1] not in stop, same)

    return Answers(
        answer(full_cache), [[answer(policy) for policy in method] for method in policies]
    )


@torch.no_grad()
def _tokens(readings: Readings, policy: Policy, reader: Any, longest: int) -> list[int]:
    recording = readings.of(policy)
    with compress(readings.model, policy, tokenizer=reader) as session:
        return greedy(session.model, branch(session, recording), recording.logits, longest)
