"""Settings of an engine: its own policy, and the policies that its requests may choose."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

from foveate.compression.composition import policy as policy_of
from foveate.defaults import VARIABLE
from foveate.errors import InvalidBudget, InvalidParameter, UnsupportedPolicy, suggest
from foveate.policies.amount import WAY_OUT
from foveate.policies.method import METHODS
from foveate.policies.policy import Policy
from foveate.policies.protocols import Foreseeable, ForeseeableByHead, FullPrecision
from foveate.policies.spec import STAGES, print_value
from foveate.policies.traits import wrapped
from foveate.stages.budget import Uniform
from foveate.stages.select import KeepsRecent
from foveate.stages.when import OverBudget
from foveate.vllm.plans.gap import Room
from foveate.vllm.plans.tiers import shaping, tiers_from

AMOUNTS = "Give a share of the prompt (0.2 or '20%') or a number of tokens (256)."
_EXAMPLE = '--additional-config \'{"foveate": {"policy": "snapkv:budget=20%"}}\''
EVERY_QUERY = 2**31
"""A score's number of queries if it reads all of them."""
_NAMES = ("policy", "policies", "tiers")
_WITHOUT = "without a profile 'snapkv:budget=20%' or 'mixkv:budget=20%'"


class Settings(NamedTuple):
    """Policies of an engine with their names, its own first, and the limit of ``tiers``, the groups
    that layers or heads with different budgets may form.
    """

    names: tuple[str, ...]
    policies: tuple[Policy, ...]
    tiers: int

    @property
    def default(self) -> Policy:
        """Policy of requests that choose none."""
        return self.policies[0]


def settings_from(additional_config: Any, environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the entry "foveate" of vLLM's additional configuration: the "policy", which may also
    come from the environment variable FOVEATE_POLICY; "policies" that requests may choose instead,
    a list of specs or specs by name; and "tiers" (8).

    Raises:
        InvalidParameter: no policy, an invalid number, or an unknown key.
        UnsupportedPolicy: a policy that cannot be served (see ``check_policy``), or not beside
            another.
        InvalidSpec, UnknownMethod, InvalidBudget: a spec that does not parse.
    """
    ours = additional_config.get("foveate") if isinstance(additional_config, Mapping) else None
    if ours is not None and not isinstance(ours, Mapping):
        raise InvalidParameter(f"foveate={ours!r} in the additional configuration: {_EXAMPLE}")
    for name in ours or ():
        if name not in _NAMES:
            raise InvalidParameter(
                f"unknown key {name!r} in the additional configuration of foveate. "
                f"{suggest(str(name), _NAMES)}"
            )
    ours = ours or {}
    spec = ours.get("policy", environ.get(VARIABLE))
    if not isinstance(spec, str) or not spec.strip():
        raise InvalidParameter(
            f"Foveate's worker was started without a policy (found {spec!r}). Give one: "
            f"{_EXAMPLE}, or set {VARIABLE}."
        )
    named = {spec: spec} | _specs_by_name(ours.get("policies", ()))
    return _parse_settings(tuple(named.items()), tiers_from(ours))


@lru_cache(maxsize=8)
def _parse_settings(named: tuple[tuple[str, str], ...], tiers: int) -> Settings:
    with adapt_budget_errors():
        policies = tuple(policy_of(spec) for _, spec in named)
    for policy in policies:
        check_policy(policy)
    shaping(policies)
    return Settings(tuple(name for name, _ in named), policies, tiers)


@contextmanager
def adapt_budget_errors() -> Iterator[None]:
    """Rewrite the advice in errors of budgets: a server takes no bytes and no auto budgets."""
    try:
        yield
    except InvalidBudget as error:
        raise InvalidBudget(str(error).replace(WAY_OUT, AMOUNTS)) from None


def _specs_by_name(specs: Any) -> dict[str, str]:
    pairs = (
        specs.items()
        if isinstance(specs, Mapping)
        else [(spec, spec) for spec in _check_list(specs)]
    )
    for name, spec in pairs:
        if not isinstance(name, str) or not isinstance(spec, str):
            raise InvalidParameter(
                f"policies: {spec!r} is no spec. Give a text such as 'snapkv:budget=20%'."
            )
        if name == "full" and spec != "full":
            raise InvalidParameter(
                f"policies: 'full' names uncompressed prompts. Give {spec!r} another name."
            )
    return dict(pairs)


def _check_list(specs: Any) -> Sequence[Any]:
    if isinstance(specs, Sequence) and not isinstance(specs, str):
        return specs
    raise InvalidParameter(
        f"policies={specs!r}: give a list of specs, or specs by name, such as "
        '["snapkv:budget=10%", "h2o:budget=20%"].'
    )


def check_policy(policy: Policy) -> None:
    """Refuse policies that vLLM's blocks cannot serve.

    The scheduler frees blocks before it knows any score, so the kept count of every layer and KV
    head must follow from the prompt's length alone.

    Raises:
        UnsupportedPolicy: names the stage that prevents it.
        InvalidBudget: a budget in bytes.
    """
    if why := next(_refusals(policy), None):
        raise UnsupportedPolicy(f"{policy} cannot be served by vLLM: {why}.")
    Room.of(policy.amount, policy.select.protects)


def _refusals(policy: Policy) -> Iterator[str]:
    """Yield the reasons why a policy cannot be served, the one to report first."""
    if policy.left_open:
        yield (
            f"{policy.left_open[0]}=auto divides one budget in bytes, and vLLM's blocks hold whole "
            "pairs of tokens that are all computed. Leave it out"
        )
    yield from _budget_refusals(policy)
    if policy.prune is not None:
        yield (
            f"{print_value(policy.prune)} has visual tokens never computed, and vLLM gives out the "
            "places of a prompt before the model sees it. Leave it out; vLLM itself drops tokens "
            "of videos (--video-pruning-rate)"
        )
    if policy.reads_again:
        yield (
            f"{print_value(policy.reads_again)} reads the prompt a second time, and blocks are "
            f"freed before. Use {_describe_supported(policy)}"
        )
    if policy.when.decodes or policy.when.reads:
        yield from _boundary_refusals(policy)
    if policy.attend.n:
        yield f"{print_value(policy.attend)} changes the model's softmax. Leave it out"
    if not isinstance(policy.store, FullPrecision):
        yield (
            f"{print_value(policy.store)} holds pairs in a form of its own, and vLLM's blocks hold "
            "all of their numbers as the model made them. Use store=full_precision"
        )
    if policy.reads_output_weight:
        yield (
            f"{print_value(policy.score)} reads the attention's output projection, which is not at "
            "hand where vLLM's attention runs. Use another score"
        )
    if policy.reads_hidden_states:
        yield (
            f"{print_value(policy.score)} reads the layers' hidden states, which are not at hand "
            "where vLLM's attention runs. Use another score"
        )
    if policy.reads_indexer:
        yield (
            f"{print_value(policy.score)} counts an indexer's choices, which are not at hand where "
            "vLLM's attention runs. Use another score"
        )
    yield from _selection_refusals(policy)


def _budget_refusals(policy: Policy) -> Iterator[str]:
    budget = policy.budget
    if isinstance(budget, Foreseeable) and not budget.foreseeable:
        yield (
            f"its budget {print_value(budget)} is found from each prompt's scores; give it "
            "profile=FILE, which 'foveate calibrate' makes"
        )
    if not isinstance(budget, (Uniform, Foreseeable, ForeseeableByHead)):
        yield (
            f"its budget {print_value(budget)} goes by each prompt's scores, or by more than the "
            "prompt's length, and blocks are freed before these are known. Use one of "
            f"{', '.join(_budgets_by_length())}, or {_describe_supported(policy)}; {_WITHOUT}"
        )


def _boundary_refusals(policy: Policy) -> Iterator[str]:
    """Yield the reasons against a policy that compresses at other times than the prompt's end.

    Supported is compression after every fixed number of tokens, by scores of stored pairs and of
    the last queries.
    """
    when = print_value(policy.when)
    if not isinstance(policy.when, OverBudget) or policy.when.growing:
        yield (
            f"{when} evicts at other times than the prompt's end, and not down to a fixed budget. "
            "Use when=after_prefill, or when=over_budget(every=256,reading=true)"
        )
    if not isinstance(policy.budget, Uniform) or policy.scope != "layer":
        yield (
            f"{when} compresses again, which is served where all heads keep the same number, layer "
            "by layer. Use when=after_prefill, or budget=uniform"
        )
    if policy.score.queries(1) >= EVERY_QUERY:
        yield (
            f"{print_value(policy.score)} reads the query of every token that is held, and {when} "
            "holds tokens whose queries are gone. Use when=after_prefill"
        )


def _selection_refusals(policy: Policy) -> Iterator[str]:
    select = policy.select
    if not isinstance(select, KeepsRecent) or getattr(select, "protect_text", False):
        yield f"what {print_value(select)} always keeps depends on more than the prompt's length"
    if policy.spares:
        yield (
            f"{print_value(select)} may keep fewer tokens than its budget by each prompt's scores, "
            "and blocks are freed before these are known. Leave fill=false out"
        )


def _budgets_by_length() -> list[str]:
    """Return the spec names of budgets whose counts follow from lengths."""
    rules = ("by_length", "by_head")  # methods of Foreseeable and ForeseeableByHead
    return sorted(
        name
        for name, stage in STAGES.items()
        if issubclass(stage, Uniform) or any(hasattr(stage, rule) for rule in rules)
    )


def _describe_supported(policy: Policy) -> str:
    """Describe the arguments with which the policy's own methods, or else all, can be served."""
    own = policy.origin.build.names if policy.origin else ()
    served = {name: method.foretold for name, method in METHODS.items() if method.foretold}
    extra = {name: served[name] for name in own if name in served} or served
    return " or ".join(f"{name} with {arguments}" for name, arguments in extra.items())


def check_profiles(policy: Policy, model: str, depth: int | None = None) -> None:
    """Raise ProfileMismatch if a stage was calibrated on another model than the one loaded from
    ``model``, or on another number of compressed layers than ``depth``, if that is known.
    """
    for stage in (*wrapped(policy.score), policy.budget):
        profile = getattr(stage, "calibrated", None)
        if profile is not None:
            profile.check_model(model.rstrip("/").split("/")[-1])
            if depth is not None:
                profile.check_layers(depth)
