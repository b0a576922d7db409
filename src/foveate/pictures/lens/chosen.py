"""What each policy keeps of a prompt that was read once, and what the model answers from it."""

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
from foveate.hf.probe.follow_up import ends
from foveate.methods.full import full
from foveate.policies.policy import Policy
from foveate.policies.pruning import Prune


class Choice(NamedTuple):
    """What one policy keeps: a row is a KV head, layer after layer; t counts tokens.

    ``scores`` are as in :class:`foveate.Kept`: +inf where a token is protected, NaN where nothing
    was scored: everything fits the budget, or the layer never computed the token. ``computed`` is
    True where it did, which tells what was evicted from what was dropped; None where all layers
    computed all tokens.
    """

    policy: Policy
    kept: Bool[Tensor, "r t"]
    scores: Float[Tensor, "r t"]
    computed: Bool[Tensor, "r t"] | None = None


class LensPrompt(NamedTuple):
    """A prompt under all policies: as many choices of each method as it has budgets.

    ``layers`` are the model's indices of the layers that are compressed, ``heads`` their numbers of
    KV heads.
    """

    layers: list[int]
    heads: list[int]
    choices: list[list[Choice]]


@dataclass(frozen=True)
class Readings:
    """A prompt, which is read as the block of a policy would read it: policies that need column
    sums share a reading whose attention adds them up, and the others one that does not. So each
    keeps what its block keeps, to the last token.
    """

    model: PreTrainedModel
    inputs: Mapping[str, Any]
    _read: dict[tuple[bool, Prune | None], Recording] = field(default_factory=dict, repr=False)

    def of(self, policy: Policy) -> Recording:
        """The prompt as this policy reads it; read when it is asked for the first time."""
        tokens = self.inputs["input_ids"].shape[1]
        kind = policy.reads_column_sums, divided_for(self.model, policy, [tokens]).prune
        if kind not in self._read:
            sums, prune = kind
            self._read[kind] = record(self.model, sums=sums, prune=prune, **self.inputs)
        return self._read[kind]


def seen(
    readings: Readings, policies: Sequence[Sequence[Policy]], tokenizer: Any = None
) -> LensPrompt:
    """Has every policy choose from the prompt."""
    model = readings.model

    def choice(policy: Policy) -> Choice:
        return _choice(compress(model, policy, tokenizer=tokenizer), readings.of(policy))

    choices = [[choice(policy) for policy in each] for each in policies]
    layers = readings.of(policies[0][0]).layers
    heads = [layer.k.shape[1] for layer in layers]
    return LensPrompt(compressible_layers(text_config(model)), heads, choices)


def _choice(block: Session, recording: Recording) -> Choice:
    with block as session:
        kept = chosen(session, recording)
    pos = [layer.pos[0] for layer in recording.layers]

    def over_tokens(layers: Sequence[Tensor], nowhere: float | bool) -> Tensor:
        each = zip(layers, pos, strict=True)
        return torch.cat([_of_tokens(t[0], at, recording.tokens, nowhere) for t, at in each]).cpu()

    masks = [one.mask for one in kept]
    unscored = [mask.float().fill_(torch.nan) for mask in masks]
    scores = [b if a.scores is None else a.scores for a, b in zip(kept, unscored, strict=True)]
    computed = None
    if block.policy.prune is not None:
        computed = over_tokens([torch.ones_like(mask) for mask in masks], False)
    return Choice(block.policy, over_tokens(masks, False), over_tokens(scores, torch.nan), computed)


def _of_tokens(
    slots: Shaped[Tensor, "h n"], pos: Int[Tensor, "h n"], tokens: int, nowhere: float | bool
) -> Shaped[Tensor, "h t"]:
    """What stands at each token's slot; ``nowhere`` for those that the layer never computed."""
    if slots.shape[1] == tokens:
        return slots
    spread = torch.full((len(slots), tokens), nowhere, dtype=slots.dtype, device=slots.device)
    return spread.scatter(1, pos, slots)


class LensAnswer(NamedTuple):
    """What the model says under one policy.

    ``tokens`` are with the one that ends it, ``text`` is without special ones; ``cut`` says that it
    would have gone on, ``same`` that its tokens are those of the full cache's answer.
    """

    spec: str
    tokens: list[int]
    text: str
    cut: bool
    same: bool


class Answers(NamedTuple):
    """The full cache's answer, and one for each method at each of its budgets."""

    full: LensAnswer
    choices: list[list[LensAnswer]]


Tell = Callable[[Policy, int, int], None]
"""Told before each answer of its policy, how many are there, and how many there will be."""


def answers(
    readings: Readings,
    policies: Sequence[Sequence[Policy]],
    reader: Any,
    longest: int,
    tell: Tell = lambda policy, done, of: None,
) -> Answers:
    """Greedy answers of at most so many tokens. Each goes on from the reading that its policy
    chooses from, so that it is the one that a block of its own gives.
    """
    whole, words = full(), getattr(reader, "tokenizer", reader)
    order = [whole, *(policy for each in policies for policy in each)]
    answers_by_spec: dict[str, list[int]] = {}
    for done, policy in enumerate(order):
        if policy.spec not in answers_by_spec:
            tell(policy, done, len(order))
            answers_by_spec[policy.spec] = _tokens(readings, policy, reader, longest)
    stop = ends(readings.model)

    def answer(policy: Policy) -> LensAnswer:
        tokens = answers_by_spec[policy.spec]
        text = words.decode(tokens, skip_special_tokens=True).strip()
        same = tokens == answers_by_spec[whole.spec]
        return LensAnswer(policy.spec, tokens, text, tokens[-1] not in stop, same)

    return Answers(answer(whole), [[answer(policy) for policy in each] for each in policies])


@torch.no_grad()
def _tokens(readings: Readings, policy: Policy, reader: Any, longest: int) -> list[int]:
    recording = readings.of(policy)
    with compress(readings.model, policy, tokenizer=reader) as session:
        return greedy(session.model, branch(session, recording), recording.logits, longest)
