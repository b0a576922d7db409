"""Calibration of a method's profile on a model: several prompts, read and compressed one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from foveate.compression.composition import policy as policy_of
from foveate.compression.composition import refuse_unknown
from foveate.errors import InvalidInput, InvalidParameter
from foveate.hf.attach.session import Session, compress
from foveate.hf.layer.support import check_model, foveate_layers, model_name
from foveate.hf.measuring.gather import check_takes_questions, each_prompt, gather, gathered_method
from foveate.hf.measuring.record import Recording, branch, record
from foveate.hf.model.module_state import restored_modules
from foveate.hf.model.weights import weights_digest
from foveate.policies.gathering import GATHERINGS, Asked
from foveate.policies.policy import Policy
from foveate.profiles.ledger import Ledger, fingerprint
from foveate.profiles.profile import CALIBRATIONS, Numbers, Profile, Run, calibrated_method, mean
from foveate.profiles.tensor_profile import TensorProfile

_ARGUMENTS = ("model", "policy", "prompts", "questions", "progress")


def calibrate(
    model: nn.Module,
    policy: Policy | str,
    prompts: Iterable[Mapping[str, Any]],
    *,
    questions: Iterable[Asked] | None = None,
    progress: Path | None = None,
    **unknown: Any,
) -> Profile | TensorProfile:
    """Measure the profile of a method on a model: the mean over prompts of its measurements, or a
    statistic of all their queries. Module state that reading changes (rotary embeddings that follow
    a prompt's length) is restored afterwards.

    Args:
        model: any model that ``compress`` takes.
        policy: a policy of the method to calibrate ("prefixkv:budget=20%"), alone or in a sum. The
            name is enough if nothing is compressed to measure it ("q_filters").
        prompts: the inputs of each prompt, as ``generate`` takes them: ``input_ids``,
            ``pixel_values``...
        questions: for ``recommended``, questions about each prompt, one entry a prompt. They are
            read with the model's own answers, and measured, too.
        progress: a file to which each prompt's numbers are written at once; if it exists, its
            prompts are not read again. It is deleted at the end.
        **unknown: any other argument raises.

    Raises:
        InvalidParameter: a method without calibration, questions to a method that takes none, or an
            unknown argument, such as ``budget=``, which belongs in the spec.
        InvalidInput: no prompt, not as many questions as prompts, a prompt so short that all of it
            fits the budget, or one whose keys, values or queries are not finite.
        UnsupportedModel: the method needs the rotation of queries by their positions, and it is
            unknown.
    """
    refuse_unknown('calibrate(model, "{}", prompts)', _ARGUMENTS, policy, unknown)
    if isinstance(policy, str) and (gathering := gathered_method(policy)):
        return gather(model, gathering, prompts, questions=questions, progress=progress)
    policy = policy_of(policy)
    name = calibrated_method(policy)
    if name in GATHERINGS:
        return gather(model, name, prompts, questions=questions, progress=progress)
    check_takes_questions(name, questions)
    how = CALIBRATIONS[name]
    title = model_name(check_model(model))
    ledger = Ledger(progress, {"calibrating": str(policy), "model": title})
    for inputs in each_prompt(prompts):
        if ledger.lacks(fingerprint(inputs)):
            with restored_modules(model), compress(model, policy) as session:
                session.prefill(**inputs)
                ledger.add(how.read(_run(session)))
    profile = _profile(policy, model, ledger.numbers)
    ledger.close()
    return profile


def calibrate_each(
    model: nn.Module,
    policies: Sequence[Policy | str],
    prompts: Iterable[Mapping[str, Any]],
    *,
    progress: Path | None = None,
) -> list[Profile]:
    """Measure the profiles of several policies, which differ in their budgets. Each prompt is read
    once for all of them, with all its queries stored. The profiles are those of :func:`calibrate`,
    to the rounding of the attention.

    Args:
        model: see :func:`calibrate`.
        policies: policies of methods with a number for each layer or head, with their budgets.
        prompts: see :func:`calibrate`.
        progress: see :func:`calibrate`.

    Raises:
        InvalidParameter: a method without calibration, or one with a profile of tensors, which
            needs :func:`calibrate`.
        InvalidInput: no prompt, or one so short that all of it fits a budget.
    """
    chosen = [policy_of(policy) for policy in policies]
    title = model_name(check_model(model))
    sums = any(policy.reads_column_sums for policy in chosen)
    readers = [_reader(policy) for policy in chosen]
    ledger = Ledger(progress, {"calibrating": [str(policy) for policy in chosen], "model": title})
    for inputs in each_prompt(prompts):
        if ledger.lacks(fingerprint(inputs)):
            with restored_modules(model):
                recording = record(model, sums=sums, **inputs)
                runs = (_branch(model, policy, recording) for policy in chosen)
                ledger.add([read(run) for read, run in zip(readers, runs, strict=True)])
    samples = zip(*ledger.numbers, strict=True) if ledger.numbers else ([] for _ in chosen)
    profiles = [_profile(policy, model, own) for policy, own in zip(chosen, samples, strict=True)]
    ledger.close()
    return profiles


def _branch(model: nn.Module, policy: Policy, recording: Recording) -> Run:
    with compress(model, policy) as session:
        branch(session, recording)
        return _run(session)


def _reader(policy: Policy) -> Callable[[Run], Numbers]:
    name = calibrated_method(policy)
    if name in GATHERINGS:
        raise InvalidParameter(
            f"{name} has a profile of tensors, which does not depend on a budget: use calibrate()."
        )
    return CALIBRATIONS[name].read


def _profile(policy: Policy, model: nn.Module, samples: Sequence[Numbers]) -> Profile:
    """Average the samples into a profile."""
    if not samples:
        raise InvalidInput("there is no prompt to calibrate on: give at least one.")
    name = calibrated_method(policy)
    budget = str(policy.amount) if CALIBRATIONS[name].at_a_budget else ""
    measured = profile_of(model, name, mean(samples), len(samples), budget)
    return replace(measured, weights=weights_digest(check_model(model)))


def profile_of(
    model: nn.Module, method: str, by_layer: Numbers, samples: int, budget: str = ""
) -> Profile:
    """Return the profile of a method with these numbers of a model's compressed layers."""
    return Profile(
        method=method,
        model=model_name(check_model(model)),
        layers=len(by_layer),
        samples=samples,
        budget=budget,
        by_layer=by_layer,
    )


def _run(session: Session) -> Run:
    layers = foveate_layers(session.cache)
    state = layers[0].state
    if not all(layer.memory.kept is not None for layer in layers):
        raise InvalidInput(
            f"a prompt of {layers[0].seen} tokens fits the budget {session.policy.amount}, so "
            "nothing was measured in it. Give longer prompts or a smaller budget."
        )
    kept = session.stats.kept
    tokens = layers[0].memory.finished
    return Run(kept, tokens - state.tokens.padding(kept[0]).cpu(), state.reading.notes)
