"""Calibration of a method on a model: measurement of its profile on several prompts."""

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
    """Measure the profile of a method on a model.

    A ``Profile`` has numbers per layer, or per layer and KV head: their mean over the prompts. A
    ``TensorProfile`` has statistics over the queries of all prompts. Module state that reading
    changes, such as rotary embeddings that depend on a prompt's length, is restored afterwards.

    Args:
        model: any model that ``compress`` takes.
        policy: a policy of the method to calibrate ("prefixkv:budget=20%"), alone or added up with
            other methods ("prefixkv+kivi:budget=20%"). The name is enough if nothing is compressed
            to measure it ("q_filters").
        prompts: the inputs of each prompt, as ``generate`` takes them: ``input_ids``,
            ``pixel_values``...
        questions: for ``recommended``, one entry per prompt with questions about it. The model
            answers them, and questions and answers are measured, too.
        progress: a file to resume from. Each prompt's numbers are written to it at once, and
            prompts in it are not read again. It is deleted at the end.
        **unknown: any other argument raises.

    Raises:
        InvalidParameter: no method that can be calibrated, or more than one; questions to a method
            that takes none; or an unknown argument, such as ``budget=``, which belongs in the spec.
        InvalidInput: no prompt; not as many questions as prompts; a prompt so short that all of it
            fits the budget, or one whose keys, values or queries are not finite; or a ``progress``
            file of another measurement.
        UnsupportedModel: the method needs the rotation of queries by their positions, and it is
            unknown.
    """
    refuse_unknown('calibrate(model, "{}", prompts)', _ARGUMENTS, policy, unknown)
    # "q_filters" alone is no complete policy: it lacks a budget, and the profile to be measured
    if isinstance(policy, str) and (method := gathered_method(policy)):
        return gather(model, method, prompts, questions=questions, progress=progress)
    policy = policy_of(policy)
    method = calibrated_method(policy)
    if method in GATHERINGS:  # of a Policy object, or of a sum
        return gather(model, method, prompts, questions=questions, progress=progress)
    check_takes_questions(method, questions)
    read_numbers = CALIBRATIONS[method].read
    ledger = Ledger(progress, {"calibrating": str(policy), "model": model_name(check_model(model))})
    for inputs in each_prompt(prompts):
        if ledger.lacks(fingerprint(inputs)):
            with restored_modules(model), compress(model, policy) as session:
                session.prefill(**inputs)
                ledger.add(read_numbers(_run(session)))
    profile = _profile(policy, model, ledger.numbers)
    ledger.close()  # deletes the file; after an error it stays, to resume from
    return profile


def calibrate_each(
    model: nn.Module,
    policies: Sequence[Policy | str],
    prompts: Iterable[Mapping[str, Any]],
    *,
    progress: Path | None = None,
) -> list[Profile]:
    """Measure one profile per policy, for example of one method at several budgets.

    Each prompt is read once, without compression and with all its queries stored; then every policy
    compresses this recording. Each profile is that of :func:`calibrate`, up to the rounding of the
    attention.

    Args:
        model: see :func:`calibrate`.
        policies: policies of methods with a number for each layer or head, with their budgets, and
            without a prune stage.
        prompts: see :func:`calibrate`.
        progress: see :func:`calibrate`.

    Raises:
        InvalidParameter: a method without calibration, or one with a profile of tensors, which
            needs :func:`calibrate`.
        InvalidInput: no prompt, or one so short that all of it fits a budget; a policy with a prune
            stage; or a ``progress`` file of another measurement.
    """
    parsed = [policy_of(policy) for policy in policies]
    title = model_name(check_model(model))
    needs_sums = any(policy.reads_column_sums for policy in parsed)
    needs_hidden = any(policy.reads_hidden_states for policy in parsed)
    readers = [_reader(policy) for policy in parsed]
    ledger = Ledger(progress, {"calibrating": [str(policy) for policy in parsed], "model": title})
    for inputs in each_prompt(prompts):
        if ledger.lacks(fingerprint(inputs)):
            with restored_modules(model):
                recording = record(model, sums=needs_sums, hidden=needs_hidden, **inputs)
                runs = (_compressed_run(model, policy, recording) for policy in parsed)
                ledger.add([read(run) for read, run in zip(readers, runs, strict=True)])
    # the ledger has a row per prompt; transpose it to a list of numbers per policy
    by_policy = zip(*ledger.numbers, strict=True) if ledger.numbers else ([] for _ in parsed)
    profiles = [
        _profile(policy, model, numbers) for policy, numbers in zip(parsed, by_policy, strict=True)
    ]
    ledger.close()
    return profiles


def _compressed_run(model: nn.Module, policy: Policy, recording: Recording) -> Run:
    """Compress a recorded prompt under a policy, and return what the method's numbers need."""
    with compress(model, policy) as session:
        branch(session, recording)
        return _run(session)


def _reader(policy: Policy) -> Callable[[Run], Numbers]:
    """Return the function that reads the numbers of the policy's method off one run.

    Raises:
        InvalidParameter: the method cannot be calibrated, or has a profile of tensors.
    """
    name = calibrated_method(policy)
    if name in GATHERINGS:
        raise InvalidParameter(
            f"{name} has a profile of tensors, which does not depend on a budget: use calibrate()."
        )
    return CALIBRATIONS[name].read


def _profile(policy: Policy, model: nn.Module, samples: Sequence[Numbers]) -> Profile:
    """Average the samples into a profile, with the digest of the model's weights.

    Raises:
        InvalidInput: there is no sample.
    """
    if not samples:
        raise InvalidInput("there is no prompt to calibrate on: give at least one.")
    name = calibrated_method(policy)
    budget = str(policy.amount) if CALIBRATIONS[name].at_a_budget else ""
    measured = profile_of(model, name, mean(samples), len(samples), budget)
    return replace(measured, weights=weights_digest(check_model(model)))


def profile_of(
    model: nn.Module, method: str, by_layer: Numbers, samples: int, budget: str = ""
) -> Profile:
    """Return the profile of a method with these numbers of a model's compressed layers.

    ``samples`` is the number of prompts behind the numbers, and ``budget`` the amount that they
    depend on. The digest of the model's weights is left empty: published numbers do not have it.
    """
    return Profile(
        method=method,
        model=model_name(check_model(model)),
        layers=len(by_layer),
        samples=samples,
        budget=budget,
        by_layer=by_layer,
    )


def _run(session: Session) -> Run:
    """Return the session's latest prompt as a run.

    Raises:
        InvalidInput: the prompt fits the budget, so that not every layer was compressed.
    """
    layers = foveate_layers(session.cache)
    state = layers[0].state
    if not all(layer.memory.kept is not None for layer in layers):
        raise InvalidInput(
            f"a prompt of {layers[0].seen} tokens fits the budget {session.policy.amount}, so "
            "nothing was measured in it. Give longer prompts or a smaller budget."
        )
    kept = session.stats.kept
    columns = layers[0].memory.finished  # length of the prompt, padding included
    lengths = columns - state.tokens.padding(kept[0]).cpu()
    return Run(kept, lengths, state.reading.notes)
