"""Fast KVzip: KVzip's score, predicted from hidden states by a small gate that was trained once.

KVzip reads a prompt twice. Fast KVzip trains a gate per layer to predict the result from what the
attention module reads, so that nothing is read again and a score does not depend on other tokens.
The gate is an attention of low rank: a token's query weighs its own key against learned sinks.

A profile has the gates: ``foveate calibrate fast_kvzip`` trains them, or converts a file of the
authors (``--from``). Differences from the authors' code:

* The last tokens are a share of the budget. The release keeps 2 % of a prompt, or the last 4,096
  tokens of one above 16,000, and all of the system prompt, where ``sinks`` is a number.
* Their training script adds the bias ``b`` twice, and their inference once. Training here uses what
  inference computes.
* ``foveate calibrate`` trains on at most 256 tokens of each prompt, where theirs took all tokens of
  34 texts of 10,000.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from foveate.cache.layer import Layer, Scores
from foveate.ops.rotation import Rotation
from foveate.policies.gathering import GATHERINGS, Gathering, Sums
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Count, Recent
from foveate.stages import OneRanking, TopK
from foveate.stages.score.bases import ByProfile, hidden_states
from foveate.stages.score.reconstruction import NOTED, Reconstruction

EPSILON = 1e-6  # of the gate's RMSNorms
RANK = 16
SINKS = 16
TOKENS = 256  # of each prompt, drawn for training
STEPS = 1000
BATCH = 256
RATE = 0.2


class Gate(NamedTuple):
    """Weights of one layer's gate of ``r`` channels with ``s`` sinks, in float32."""

    of_query: Float[Tensor, "h g r c"]
    query_offset: Float[Tensor, "h g r"]
    of_key: Float[Tensor, "h r c"]
    query_norm: Float[Tensor, "r"]
    key_norm: Float[Tensor, "r"]
    sink_keys: Float[Tensor, "h s r"]
    offset: Float[Tensor, "h g"]

    def __call__(self, hidden: Float[Tensor, "b m c"]) -> Float[Tensor, "b h m"]:
        """Return the weight of each token's key beside the sinks, the mean over query heads."""
        x, scale = hidden.float(), self.of_key.shape[1] ** -0.5
        queries = torch.einsum("bmc,hgrc->bhgmr", x, self.of_query)
        queries = _normed(queries + self.query_offset[:, :, None], self.query_norm)
        keys = _normed(torch.einsum("bmc,hrc->bhmr", x, self.of_key), self.key_norm)
        own = (queries * keys[:, :, None]).sum(-1) * scale + self.offset[..., None]
        sinks = torch.einsum("bhgmr,hsr->bhgms", queries, self.sink_keys) * scale
        weights: Tensor = (own - sinks.logsumexp(-1)).sigmoid().mean(2)
        return weights


def _normed(x: Float[Tensor, "*b r"], weight: Float[Tensor, "r"]) -> Float[Tensor, "*b r"]:
    return F.rms_norm(x, weight.shape, weight, EPSILON)


@stage("hidden_gate", reads_hidden_states=True, slot_bytes=4)
class HiddenGate(ByProfile):
    """KVzip's score, predicted from hidden states by the gates of a ``profile``; in float32.

    Source: Fast KVzip (arXiv:2601.17668), the low-rank sink attention of the release.
    """

    method = "fast_kvzip"

    def observe(self, layer: Layer) -> Mapping[str, Tensor]:
        """Append the scores of this pass's tokens."""
        scores = self._gate(layer)(hidden_states(layer))
        earlier = layer.k.shape[2] - scores.shape[2]
        return {"gate": layer.state.get("gate", 0) + F.pad(scores, (earlier, 0))}

    def _gate(self, layer: Layer) -> Gate:
        profile, h = self.calibrated, layer.k.shape[1]
        profile.check_layers(layer.depth)
        weights, c = profile.by_layer[layer.ordinal], hidden_states(layer).shape[-1]
        r, s = len(weights["key_norm"]), weights["sink_keys"].shape[1]
        g = layer.groups
        shapes = (h, g, r, c), (h, g, r), (h, r, c), (r,), (r,), (h, s, r), (h, g)
        named = dict(zip(Gate._fields, shapes, strict=True))
        return Gate(*(weight.float() for weight in profile.of(layer, **named)))

    def __call__(self, layer: Layer) -> Scores:
        return Scores(layer.state["gate"])


class ReadAgain(Reconstruction):
    """KVzip's score, beside the hidden states that a gate predicts it from."""

    reads_hidden_states: ClassVar[bool] = True


class GateTraining(Gathering):
    """Training of a gate per layer on KVzip's scores of drawn tokens, by stochastic gradients.

    Source: Fast KVzip's release (``optim.py``): binary cross entropy, momentum 0.9, a rate of 0.2
    that halves at half of the steps and again at three quarters.
    """

    watched: ClassVar[Reconstruction] = ReadAgain(by="attention")
    joins: ClassVar[bool] = True
    names: ClassVar[tuple[str, ...]] = Gate._fields

    def gather(self, layer: Layer, rotation: Rotation | None) -> Sums:
        """Draw tokens of the prompt: their hidden states, and KVzip's scores of their pairs."""
        tokens = layer.valid[:, 0].nonzero()
        drawn = torch.Generator("cpu").manual_seed(len(tokens))
        order = torch.randperm(len(tokens), generator=drawn, device="cpu")[:TOKENS]
        rows, slots = tokens[order.to(tokens.device)].unbind(1)
        goals = layer.state[NOTED][rows, :, slots].float()
        groups = layer.pos.new_full((1,), layer.groups)
        hidden = hidden_states(layer)[rows, slots].half()
        return {"hidden": hidden, "goals": goals, "groups": groups}

    def finish(self, sums: Sums, rotation: Rotation | None) -> Mapping[str, Tensor]:
        with torch.enable_grad(), torch.inference_mode(False):
            data = sums["hidden"].float().clone(), sums["goals"].clone()
            trained = train(*data, groups=int(sums["groups"][0]))
        return {name: weight.detach() for name, weight in trained._asdict().items()}


def train(hidden: Float[Tensor, "n c"], goals: Float[Tensor, "n h"], groups: int) -> Gate:
    """Train a layer's gate to predict the scores of tokens from their hidden states."""
    drawn = torch.Generator("cpu").manual_seed(0)
    gate = _initial(hidden, goals.shape[1], groups, drawn)
    optimiser = torch.optim.SGD(gate, lr=RATE, momentum=0.9)
    for step in range(STEPS):
        batch = torch.randint(len(hidden), (BATCH,), generator=drawn, device="cpu")
        predicted = gate(hidden[batch][None])[0].T.clamp(EPSILON, 1 - EPSILON)
        loss = F.binary_cross_entropy(predicted, goals[batch], reduction="none")
        optimiser.zero_grad()
        loss.mean(0).sum().backward()  # type: ignore[no-untyped-call]
        optimiser.param_groups[0]["lr"] = RATE * _rate(step / STEPS)
        optimiser.step()
    return gate


def _rate(progress: float) -> float:
    """Return the factor of the learning rate: a warm-up of 1 %, then steps down."""
    if progress < 0.01:
        return progress / 0.01
    return 1.0 if progress < 0.5 else 0.5 if progress < 0.75 else 0.25


def _initial(hidden: Float[Tensor, "n c"], h: int, g: int, drawn: torch.Generator) -> Gate:
    """Return the initial weights: linear layers as PyTorch draws them, sinks and offsets zero."""
    c = hidden.shape[1]

    def uniform(*shape: int) -> Tensor:
        return hidden.new_empty(shape).uniform_(-(c**-0.5), c**-0.5, generator=drawn)

    weights = Gate(
        uniform(h, g, RANK, c),
        uniform(h, g, RANK),
        uniform(h, RANK, c),
        hidden.new_ones(RANK),
        hidden.new_ones(RANK),
        hidden.new_zeros(h, SINKS, RANK),
        hidden.new_zeros(h, g),
    )
    return Gate(*(weight.requires_grad_() for weight in weights))


GATHERINGS["fast_kvzip"] = GateTraining()


@method("kim2026fastkvzip", adds=("score", "budget", "select"))
def fast_kvzip(*, budget: Amount, profile: str, sinks: Count = 4, recent: Recent = 0.1) -> Policy:
    """Pairs that a trained gate on hidden states ranks highest, in one ranking of all heads.

    Defaults:
        release: 2 % of the prompt as its last tokens, which is 10 % of a budget of 20 %; kvpress:
        `sinks`
    """
    return Policy(
        score=HiddenGate(profile=profile),
        budget=OneRanking(amount=budget),
        select=TopK(sinks=sinks, recent=recent),
    )
