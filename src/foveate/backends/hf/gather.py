"""Measuring a profile of tensors on a model: sums over the queries of several prompts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from foveate.backends.hf.observer import Observer, observing
from foveate.backends.hf.rotation import counted, rotations
from foveate.backends.hf.session import compress
from foveate.backends.hf.support import check_model, model_name
from foveate.backends.hf.undone import undone
from foveate.core import finite
from foveate.core.composition import name_and_arguments
from foveate.core.gathering import GATHERINGS, Gathering
from foveate.core.layer import Layer, Scores
from foveate.core.ledger import fingerprint
from foveate.core.method import METHODS
from foveate.core.parameters import shown
from foveate.core.policy import Policy
from foveate.core.protocols import Score
from foveate.core.sums_ledger import SumsLedger
from foveate.core.tensor_profile import TensorProfile
from foveate.errors import InvalidInput, InvalidParameter, suggest
from foveate.ops.rotation import Rotation
from foveate.stages.budget import Uniform
from foveate.stages.select import TopK


def gathered_method(spec: str) -> str | None:
    """The method of a spec, if it is one whose profile holds tensors. It may lack the profile that
    is to be made, and budgets do not matter.

    Raises:
        InvalidParameter: a parameter that the method does not have.
        InvalidSpec: a text that does not parse.
    """
    if spec.partition(":")[0].strip() not in GATHERINGS:
        return None
    name, arguments = name_and_arguments(spec)
    for key in arguments:
        if key not in METHODS[name].parameters:
            raise InvalidParameter(
                f"{name} has no parameter {shown(key)}. {suggest(key, METHODS[name].parameters)}"
            )
    return name


@dataclass(frozen=True)
class Gatherer(Observer):
    """Adds up what a method wants of all queries of one prompt."""

    gathering: Gathering
    turns: list[Rotation]  # of each layer, if they are known
    sums: dict[int, dict[str, Tensor]] = field(default_factory=dict)

    def observe(self, layer: Layer) -> Mapping[str, Tensor]:
        """Adds one pass of a layer, whose numbers are all numbers."""
        finite.check(layer, layer.q.shape[2], "a profile")
        found = self.gathering.gather(layer, self.turns[layer.ordinal] if self.turns else None)
        held = self.sums.get(layer.ordinal, {})
        self.sums[layer.ordinal] = {k: held[k] + t if held else t for k, t in found.items()}
        return {}


@dataclass(frozen=True)
class Watcher(Gatherer):
    """The same of a layer whose watched score has been made."""

    of: Score | None = None

    def observe(self, layer: Layer) -> Mapping[str, Tensor]:
        """Nothing yet."""
        return {}

    def __call__(self, layer: Layer) -> Scores:
        super().observe(layer)
        return super().__call__(layer)


def _watching(gathering: Gathering, turns: list[Rotation]) -> tuple[Gatherer, Policy]:
    """What adds up, and the policy under which it sees what it wants to see."""
    if gathering.watched is None:
        one = Gatherer(gathering, turns)
        return one, observing(one, decodes=False)
    watcher = Watcher(gathering, turns, of=gathering.watched)
    policy = Policy(score=watcher, budget=Uniform(amount=1), select=TopK())
    return watcher, policy


def each_prompt(prompts: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The prompts, one after the other.

    Raises:
        InvalidInput: one of them is no inputs of a model, or all of it is the inputs of one prompt.
    """
    what = "give a list of inputs, each as generate takes it: [{'input_ids': ..., ...}, ...]"
    if isinstance(prompts, Mapping):
        raise InvalidInput(f"these are the inputs of one prompt: {what}.")
    for place, inputs in enumerate(prompts):
        if not isinstance(inputs, Mapping):
            raise InvalidInput(f"prompt {place} is a {type(inputs).__name__}: {what}.")
        yield inputs


def gather(
    model: nn.Module,
    name: str,
    prompts: Iterable[Mapping[str, Any]],
    *,
    progress: Path | None = None,
) -> TensorProfile:
    """The profile of the method of that name; see ``calibrate``."""
    gathering, title = GATHERINGS[name], model_name(check_model(model))
    turns: list[Rotation] = []
    ledger = SumsLedger(progress, {"calibrating": name, "model": title})
    for inputs in each_prompt(prompts):
        if gathering.turns_back and not turns:
            with undone(model):
                turns = rotations(model, inputs)
        if ledger.lacks(fingerprint(inputs)):
            one, policy = _watching(gathering, turns)
            with undone(model), compress(model, policy) as session:
                session.prefill(**(counted(inputs) if gathering.turns_back else inputs))
            ledger.add([one.sums[layer] for layer in sorted(one.sums)])
    if not ledger.samples:
        raise InvalidInput("there is no prompt to calibrate on: give at least one.")
    profile = TensorProfile(
        method=name,
        model=title,
        layers=len(ledger.by_layer),
        samples=len(ledger.samples),
        budget="",
        by_layer=[
            gathering.finish(sums, turns[layer] if turns else None)
            for layer, sums in enumerate(ledger.by_layer)
        ],
    )
    ledger.close()
    return profile
