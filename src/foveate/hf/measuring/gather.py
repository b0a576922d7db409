"""Calibration of a profile of tensors on a model: sums over the queries of several prompts."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from foveate.cache.layer import Layer, Scores, check_finite
from foveate.compression.composition import name_and_arguments
from foveate.errors import InvalidInput, InvalidParameter, UnsupportedModel, suggest
from foveate.hf.attach.session import compress
from foveate.hf.layer.support import check_model, model_name
from foveate.hf.measuring.record import Observer, observing
from foveate.hf.measuring.rotation import counted, rotations, rotations_if_counted
from foveate.hf.model.internals import given_tokens
from foveate.hf.model.module_state import restored_modules
from foveate.hf.model.weights import weights_digest
from foveate.ops.rotation import Rotation
from foveate.policies.gathering import (
    GATHERINGS,
    Asked,
    Gathering,
    Sums,
    Targeted,
    as_tensors,
    combined,
    joins,
    targets_of,
    turns_far_keys,
)
from foveate.policies.method import METHODS
from foveate.policies.parameters import short_repr
from foveate.policies.policy import Policy
from foveate.policies.protocols import Score
from foveate.profiles.ledger import SumsLedger, fingerprint
from foveate.profiles.tensor_profile import TensorProfile
from foveate.stages.budget import Uniform
from foveate.stages.select import TopK

log = logging.getLogger("foveate")


def gathered_method(spec: str) -> str | None:
    """Return the method of a spec if its profile has tensors, else None. The profile may be
    missing, and budgets do not matter.

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
                f"{name} has no parameter {short_repr(key)}. "
                f"{suggest(key, METHODS[name].parameters)}"
            )
    return name


@dataclass(frozen=True)
class Gatherer(Observer):
    """Observer that sums a method's statistics over all queries of one prompt."""

    gathering: Gathering
    turns: list[Rotation]  # of each layer; empty if unknown
    sums: dict[int, Sums] = field(default_factory=dict)

    def observe(self, layer: Layer) -> Mapping[str, Tensor]:
        """Add one pass of a layer; raises if its numbers are not finite."""
        check_finite(layer, layer.q.shape[2], "a profile")
        sums = self.gathering.gather(layer, self.turns[layer.ordinal] if self.turns else None)
        earlier = self.sums.get(layer.ordinal, {})
        self.sums[layer.ordinal] = combined(earlier, sums, joins(self.gathering))
        return {}


@dataclass(frozen=True)
class Watcher(Gatherer):
    """Gatherer that runs at compression, when the watched score's by-products are there."""

    of: Score | None = None

    def observe(self, layer: Layer) -> Mapping[str, Tensor]:
        """Do nothing: the layer is added in ``__call__``."""
        return {}

    def __call__(self, layer: Layer) -> Scores:
        super().observe(layer)
        return super().__call__(layer)


def _watching(
    gathering: Gathering, turns: list[Rotation], target: str, questions: Asked
) -> tuple[Gatherer, Policy]:
    """Return the gatherer, and a policy under which it observes the layers that the gathering
    needs.
    """
    score = gathering.watched
    if isinstance(gathering, Targeted):
        score = gathering.watching(target, questions)
    if score is None:
        gatherer = Gatherer(gathering, turns)
        return gatherer, observing(gatherer, decodes=False)
    watcher = Watcher(gathering, turns, of=score)
    policy = Policy(score=watcher, budget=Uniform(amount=1), select=TopK())
    return watcher, policy


def each_prompt(prompts: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the prompts.

    Raises:
        InvalidInput: a prompt is not a mapping of model inputs, or ``prompts`` is one.
    """
    hint = "give a list of inputs, each as generate takes it: [{'input_ids': ..., ...}, ...]"
    if isinstance(prompts, Mapping):
        raise InvalidInput(f"these are the inputs of one prompt: {hint}.")
    for index, inputs in enumerate(prompts):
        if not isinstance(inputs, Mapping):
            raise InvalidInput(f"prompt {index} is a {type(inputs).__name__}: {hint}.")
        yield inputs


def gather(
    model: nn.Module,
    name: str,
    prompts: Iterable[Mapping[str, Any]],
    *,
    questions: Iterable[Asked] | None = None,
    progress: Path | None = None,
) -> TensorProfile:
    """Measure the profile of the method of that name; see ``calibrate``."""
    gathering, title = GATHERINGS[name], model_name(check_model(model))
    check_takes_questions(name, questions)
    rest = _with_questions(prompts, questions)
    first = _up_to_a_question(rest) if questions is not None else list(islice(rest, 1))
    if not first:
        raise InvalidInput("there is no prompt to calibrate on: give at least one.")
    sample = _Sampling(model, gathering)
    measured = sample.with_best_target(*first[-1])
    heading = {"calibrating": name, "model": title, "target": sample.target}
    ledger = SumsLedger(progress, heading, joins(gathering))
    of_keys = rotations_if_counted(model, first[-1][0]) if turns_far_keys(gathering) else []
    longest = 0
    for inputs, question in chain(first, rest):
        longest = max(longest, _tokens(inputs))
        if ledger.lacks(fingerprint({**inputs, **_fingerprinted(question)})):
            ledger.add(measured if inputs is first[-1][0] else sample.measured(inputs, question))
    profile = TensorProfile(
        method=name,
        model=title,
        layers=len(ledger.by_layer),
        samples=len(ledger.samples),
        budget="",
        target=_reached(gathering, sample.target, ledger.by_layer),
        weights=weights_digest(check_model(model)),
        prompts=fingerprint(*ledger.samples),
        longest=longest,
        by_layer=[
            {
                **gathering.finish(sums, sample.turns[layer] if sample.turns else None),
                **(as_tensors(of_keys[layer]) if of_keys else {}),
            }
            for layer, sums in enumerate(ledger.by_layer)
        ],
    )
    ledger.close()
    return profile


def _tokens(inputs: Mapping[str, Any]) -> int:
    """Count the tokens of a prompt, padding included."""
    tokens = given_tokens(inputs)
    return 0 if tokens is None else int(tokens.shape[1])


def _reached(gathering: Gathering, target: str, by_layer: Sequence[Sums]) -> str:
    if not isinstance(gathering, Targeted):
        return target
    targets = gathering.reached(target, by_layer[0])
    if targets != target:
        log.warning("the model answered no question: the profile's target is %r", targets)
    return targets


def check_takes_questions(name: str, questions: Iterable[Asked] | None) -> None:
    """Raise InvalidParameter for questions to a method that takes none."""
    if questions is not None and not isinstance(GATHERINGS.get(name), Targeted):
        raise InvalidParameter(f"{name} needs no questions to be calibrated. Leave questions= out.")


def _with_questions(
    prompts: Iterable[Mapping[str, Any]], questions: Iterable[Asked] | None
) -> Iterator[tuple[Mapping[str, Any], Asked]]:
    """Yield the prompts with their questions."""
    if questions is None:
        yield from ((inputs, Asked()) for inputs in each_prompt(prompts))
        return
    missing = object()
    for inputs, question in zip_longest(each_prompt(prompts), questions, fillvalue=missing):
        if inputs is missing or not isinstance(question, Asked):
            raise InvalidInput(
                "questions= needs one foveate.policies.gathering.Asked for each of the prompts, as "
                "many as there are: this is "
                f"{short_repr(question if question is not missing else 'none')}."
            )
        yield inputs, question  # type: ignore[misc]


def _up_to_a_question(
    prompts: Iterable[tuple[Mapping[str, Any], Asked]],
) -> list[tuple[Mapping[str, Any], Asked]]:
    """Return the first prompts, up to one with questions: on it the best target is found."""
    seen = []
    for inputs, question in prompts:
        seen.append((inputs, question))
        if question.questions:
            break
    return seen


def _fingerprinted(questions: Asked) -> Mapping[str, Any]:
    """Return the fingerprinted entries of a prompt beside its inputs."""
    return {"questions": str(questions)} if questions.questions else {}


@dataclass
class _Sampling:
    """Measurement of one prompt after the other, for one ``target``."""

    model: nn.Module
    gathering: Gathering
    target: str = ""
    turns: list[Rotation] = field(default_factory=list)

    def with_best_target(self, inputs: Mapping[str, Any], questions: Asked) -> list[Sums]:
        """Measure one prompt with the best target that the model supports, and keep that target.

        Raises:
            UnsupportedModel: it supports none.
        """
        targets = [
            name for name in targets_of(self.gathering) if questions.questions or name != "answers"
        ]
        for self.target in targets[:-1]:
            try:
                return self.measured(inputs, questions)
            except UnsupportedModel as error:
                log.warning(
                    "the target %r is not available, so the next one is used: %s",
                    self.target,
                    error,
                )
        self.target = targets[-1] if targets else ""
        return self.measured(inputs, questions)

    def measured(self, inputs: Mapping[str, Any], questions: Asked) -> list[Sums]:
        """Measure the sums of every layer."""
        if self.gathering.turns_back and not self.turns:
            with restored_modules(self.model):
                self.turns = rotations(self.model, inputs)
        gatherer, policy = _watching(self.gathering, self.turns, self.target, questions)
        with restored_modules(self.model), compress(self.model, policy) as session:
            session.prefill(**(counted(inputs) if self.gathering.turns_back else inputs))
        return [gatherer.sums[layer] for layer in sorted(gatherer.sums)]
