"""Parsing of specs to policies, and sums of methods.

Methods add up, ``mixkv+prefixkv+lookm.merge:budget=10%``, after an optional prune stage,
``fastv.prune(keep=50%)+mixkv:budget=10%``.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from foveate.compression.budget_division import check_one_budget
from foveate.errors import (
    FoveateError,
    InvalidBudget,
    InvalidParameter,
    InvalidSpec,
    UnknownMethod,
    suggest,
)
from foveate.policies.amount import AUTO, Amount
from foveate.policies.method import METHODS, Method, Paper
from foveate.policies.parameters import short_repr
from foveate.policies.policy import Origin, Policy, amount_of, with_amount
from foveate.policies.prunes import PRUNES
from foveate.policies.pruning import Prune
from foveate.policies.spec import (
    EVERY_SLOT,
    SLOTS,
    make_stage,
    parse_arguments,
    print_arguments,
    print_value,
    split,
)
from foveate.profiles.profile import method_of

_METHOD, _STAGE = r"(?P<method>[A-Za-z_]\w*)\s*", r"(?:\.\s*(?P<stage>\w+)\s*)"
_TERM = re.compile(rf"{_METHOD}{_STAGE}?(?:\((?P<arguments>.*)\))?", re.DOTALL)
_STAGE_LAST = re.compile(rf"{_METHOD}\((?P<arguments>.*)\)\s*{_STAGE}", re.DOTALL)

BY_DEFAULT = "recommended:budget=20%"
"""Spec of the policy that compresses if none is named."""


class Term(NamedTuple):
    """One method of a sum: the stages that it adds, and its own parameters."""

    method: Method
    slots: tuple[str, ...]
    arguments: Mapping[str, Any]
    text: str

    def but(self, arguments: Mapping[str, Any]) -> Term:
        """Return the term with other parameters of its own."""
        name, printed = self.text.partition("(")[0], print_arguments(arguments)
        return self._replace(arguments=arguments, text=f"{name}({printed})" if printed else name)


class PruneTerm(NamedTuple):
    """The prune stage in front of all methods of a sum, and its paper."""

    stage: Prune
    paper: Paper | None
    text: str

    def but(self, stage: Prune) -> PruneTerm:
        """Return the term with the same kind of stage and other parameters."""
        name, printed = self.text.partition("(")[0], print_value(stage).partition("(")[2]
        return self._replace(stage=stage, text=f"{name}({printed}")


class Sum:
    """Methods added up from left to right, after an optional prune stage; called like a method.

    The first method's policy is the start. Every other one replaces the stages that it adds
    (``Method.adds``, or the one named after a dot); a score that wraps others (``Method.wraps``)
    wraps the current one instead. Parameters go to every method that has them, unless it has them
    in parentheses; a profile goes to the method that it was made for.
    """

    summary = "Several methods added up."
    paper: Paper | None = None

    def __init__(self, terms: list[Term], prune: PruneTerm | None = None):
        self.terms, self.prune = terms, prune
        first = [] if prune is None else [prune.text]
        self.name = "+".join([*first, *(term.text for term in terms)])

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the methods in the sum."""
        return tuple(term.method.name for term in self.terms)

    @property
    def papers(self) -> tuple[Paper, ...]:
        """The papers to cite, in order."""
        pruned = () if self.prune is None or self.prune.paper is None else (self.prune.paper,)
        theirs = (p for term in self.terms for p in term.method.papers)
        return tuple(dict.fromkeys((*pruned, *theirs)))

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """Parameters of all methods."""
        parameters: dict[str, inspect.Parameter] = {}
        for term in self.terms:
            parameters = {**term.method.parameters, **parameters}
        return {name: p for name, p in parameters.items() if any(True for _ in self._takers(name))}

    def non_default(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that differ from a method's default."""
        return {
            name: value
            for name, value in arguments.items()
            if any(term.method.parameters[name].default != value for term in self._takers(name))
        }

    def __call__(self, **arguments: Any) -> Policy:
        """Build the policy, which remembers the call for its spec.

        Raises:
            InvalidParameter: a parameter that no method has, or that changes nothing here.
            InvalidBudget: a budget that cannot be met.
        """
        for name in arguments:
            if name not in self.parameters:
                raise InvalidParameter(
                    f"no method of {self.name} has a parameter {short_repr(name)}. "
                    f"{suggest(name, self.parameters)}"
                )
        if "budget" in arguments:
            arguments["budget"] = Amount.of(arguments["budget"])
        policy = self._sum(arguments)
        self._refuse_without_effect(arguments, policy)
        ordered = {name: arguments[name] for name in self.parameters if name in arguments}
        prune = None if self.prune is None else self.prune.stage
        return replace(policy, prune=prune, origin=Origin(self, ordered, {}))

    def with_stages(
        self, arguments: Mapping[str, Any], stages: Mapping[str, Any]
    ) -> tuple[Sum, dict[str, Any]]:
        """Return the sum and its arguments with ``auto`` shares replaced by those of ``stages``."""
        prune, terms, shared = self.prune, self.terms, dict(arguments)
        if prune is not None and "prune" in stages:
            prune = prune.but(stages["prune"])
        if "store" in stages:  # FullPrecision has no bits, and replaces the method's store
            bits = {"bits": getattr(stages["store"], "bits", 8)}
            terms = [
                term.but({**term.arguments, **bits}) if _is_open(term.arguments) else term
                for term in terms
            ]
            shared |= bits if _is_open(shared) else {}
        return Sum(terms, prune), shared

    def _refuse_without_effect(self, arguments: Mapping[str, Any], policy: Policy) -> None:
        """Refuse parameters that change nothing, because another method's stage replaced theirs.

        A value that is the default of a method that takes it is allowed: tables of comparisons pass
        one window to all specs.
        """
        for name in self.non_default(arguments):
            usual = [term.method.parameters[name].default for term in self._takers(name)]
            if arguments[name] in usual:
                continue
            takers = " and ".join(term.method.name for term in self._takers(name))
            if self._equals(policy, self.terms, _otherwise(name, arguments)):
                raise InvalidParameter(_no_effect_message(name, arguments[name], self.name, takers))
        for index, term in enumerate(self.terms):
            for name in term.method.non_default(term.arguments):
                other = term._replace(arguments=_otherwise(name, term.arguments))
                terms = [*self.terms[:index], other, *self.terms[index + 1 :]]
                if self._equals(policy, terms, arguments):
                    value, method = term.arguments[name], term.method.name
                    raise InvalidParameter(_no_effect_message(name, value, self.name, method))

    @staticmethod
    def _equals(policy: Policy, terms: list[Term], arguments: Mapping[str, Any]) -> bool:
        """Return True if other terms or arguments build an equal policy, without an error."""
        try:
            return Sum(terms)._sum(arguments) == policy
        except FoveateError:
            return False

    def _takers(self, name: str) -> list[Term]:
        """Return the terms that a parameter of the sum goes to."""
        return [t for t in self.terms if name in t.method.parameters and name not in t.arguments]

    def _sum(self, arguments: Mapping[str, Any]) -> Policy:
        total: Policy | None = None
        amount: Amount | None = None
        for term in self.terms:
            theirs = {n: v for n, v in arguments.items() if self._is_for(term, n, v)}
            policy, own_amount = _built(term.method, {**theirs, **term.arguments})
            if total is None or "budget" in term.slots:
                amount = own_amount
            total = policy if total is None else _added(total, policy, term)
        if total is None:
            raise InvalidSpec("a sum of no methods.")
        if amount is not None:
            total = replace(total, budget=replace(total.budget, amount=amount))  # type: ignore[type-var]
        return replace(total, origin=None)

    def _is_for(self, term: Term, name: str, value: Any) -> bool:
        """Return True if a parameter of the sum goes to this term.

        A profile names its method: if that is among several methods with profiles, only it gets the
        file.
        """
        if name not in term.method.parameters:
            return False
        takers = [taker.method.name for taker in self._takers(name)]
        if name != "profile" or len(takers) < 2 or not isinstance(value, str):
            return True
        owner = method_of(value)
        return owner not in takers or owner == term.method.name

    def __repr__(self) -> str:
        return f"<methods {self.name}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> Sum:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (find, (self.name,))


def _no_effect_message(name: str, value: Any, sum_name: str, method: str) -> str:
    return (
        f"{name}={value} changes nothing in {sum_name}: other methods replace the stages in which "
        f"{method} would use it. Leave it out."
    )


def _built(method: Method, arguments: Mapping[str, Any]) -> tuple[Policy, Amount | None]:
    """Build a term's policy, and its budget if that is smaller than what the method protects.

    The selection may be replaced by another method's, so the sum has to check the budget.
    """
    try:
        return method(**arguments), None
    except InvalidBudget:
        if "budget" not in arguments:
            raise
        amount = Amount.of(arguments["budget"])
        return method(**{**arguments, "budget": Amount.of("100%")}), amount


def _is_open(arguments: Mapping[str, Any]) -> bool:
    return arguments.get("bits") == AUTO


def _otherwise(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments without one of them; a budget, which is required, is changed."""
    if name == "budget":
        other = "37%" if Amount.of(arguments[name]) != Amount.of("37%") else "38%"
        return {**arguments, name: Amount.of(other)}
    return {key: value for key, value in arguments.items() if key != name}


def _added(base: Policy, policy: Policy, term: Term) -> Policy:
    stages = {slot: getattr(policy, slot) for slot in term.slots}
    if "score" in stages and term.method.wraps:
        score = stages["score"]
        stages["score"] = replace(score, of=base.score) if hasattr(score, "of") else base.score
    return replace(base, **stages)


def find(name: str) -> Method | Sum:
    """Return the method, or the sum of methods, of this name.

    Raises:
        UnknownMethod: no method has that name.
        InvalidSpec: a term is not of the form method, method.stage, method(key=value) or
            method.stage(key=value), or a prune stage is not first, or alone.
    """
    if name.isidentifier():
        return METHODS[name]
    parts = [part.strip() for part in split(name, "+")]
    if not all(parts):
        raise InvalidSpec(f"{short_repr(name)} needs a method on each side of every plus sign.")
    prune = _prune_term(parts[0])
    if prune is not None and len(parts) == 1:
        raise InvalidSpec(
            f"{short_repr(name)} only chooses the tokens to compute. Add a method that chooses the "
            f"pairs to keep: '{name}+full' keeps all of them."
        )
    rest = parts[1:] if prune else parts
    return Sum([_term(part, first=not index) for index, part in enumerate(rest)], prune)


def _prune_term(text: str) -> PruneTerm | None:
    """Parse ``NAME.prune(key=value)``; None for any other term.

    Raises:
        UnknownMethod: no prune stage has that name.
    """
    match = _TERM.fullmatch(text) or _STAGE_LAST.fullmatch(text)
    if match is None or match["stage"] != "prune":
        return None
    name = match["method"]
    if name not in PRUNES:
        raise UnknownMethod(f"nothing named {short_repr(name)} prunes. {suggest(name, PRUNES)}")
    stage = make_stage(PRUNES[name].stage_name, parse_arguments(match["arguments"] or ""))
    printed = print_value(stage).partition("(")[2]
    return PruneTerm(stage, PRUNES[name].paper, f"{name}.prune({printed}")


def _term(text: str, first: bool) -> Term:
    match = _TERM.fullmatch(text) or _STAGE_LAST.fullmatch(text)
    if match is None:
        raise InvalidSpec(
            f"{short_repr(text)} is no method of a sum: write method, method.stage or "
            "method(key=value)." + _suggestion(text)
        )
    if match["stage"] == "prune":
        raise InvalidSpec(
            f"{short_repr(text)}: a prune stage must be the first term of a sum: "
            f"'{text}+snapkv:budget=20%'."
        )
    method, slot = METHODS[match["method"]], match["stage"]
    arguments = parse_arguments(match["arguments"] or "")
    if slot is not None and (first or slot not in SLOTS):
        raise InvalidSpec(
            f"{short_repr(text)}: the first method of a sum gives all its stages."
            if first
            else f"{short_repr(text)}: a method has no stage {slot!r}. {suggest(slot, SLOTS)}"
        )
    printed = f"({print_arguments(arguments)})" if arguments else ""
    label = f"{method.name}.{slot}" if slot else method.name
    return Term(method, (slot,) if slot else method.adds, arguments, label + printed)


def _suggestion(text: str) -> str:
    """Suggest a similar method, or a colon before parameters; an empty text otherwise."""
    name, _, rest = text.partition(" ")
    if rest and name in METHODS:
        return f" A colon stands between a method and its parameters: '{name}:{rest.strip()}'."
    suggestion = suggest(text, METHODS)
    return f" {suggestion}" if suggestion.startswith("Did") else ""


def name_and_arguments(spec: str) -> tuple[str, dict[str, Any]]:
    """Split a spec into the name before its colon and the values after it.

    Raises:
        InvalidSpec: no name, or a text that does not parse.
    """
    name, *rest = split(spec, ":")
    if not name.strip():
        raise InvalidSpec(
            f"{short_repr(spec)} names no method. Write for example 'snapkv:budget=20%'."
        )
    return name.strip(), parse_arguments(":".join(rest))


def policy(spec: Policy | str, **changes: Any) -> Policy:
    """Parse a spec such as "snapkv:budget=20%,window=16" to a policy.

    Keyword arguments override the spec's: ``policy("snapkv", budget=0.1)``. Methods add up:
    "mixkv+prefixkv+lookm.merge:budget=10%" (see :class:`Sum`).

    Raises:
        UnknownMethod: no method or stage has that name.
        InvalidSpec, InvalidParameter, InvalidBudget: the text does not parse, or a value is bad.
        InvalidSpec: ``spec`` is neither a text nor a policy.
        InvalidBudget: a share is "auto", and there is no budget to divide.
    """
    if isinstance(spec, Policy):
        built = spec.but(**changes) if changes else spec
    else:
        built = _parsed(spec, changes)
    check_one_budget(built)
    return built


def refuse_unknown(
    call: str, known: Sequence[str], policy: object, unknown: Mapping[str, Any]
) -> None:
    """Refuse arguments that a function with a policy does not take, and show a correct call.

    Args:
        call: its call, with {} for a spec: 'compress(model, "{}")'.
        known: names of its arguments.
        policy: the value passed as its policy.
        unknown: all arguments that it does not take.

    Raises:
        InvalidParameter: ``unknown`` is not empty.
    """
    function = call.partition("(")[0]
    for name in unknown:
        if close := difflib.get_close_matches(name, known, n=1):
            raise InvalidParameter(
                f"{name}= is no argument of {function}(). Did you mean {close[0]}=?"
            )
        spec = str(unknown.get("method", policy))
        entries = ",".join(f"{key}={value}" for key, value in unknown.items() if key != "method")
        if any(f"{key}=" in spec for key in unknown):
            spec = spec.partition(":")[0]
        joint = "" if not entries else "," if ":" in spec else ":"
        takes = ", ".join(f"{argument}=" for argument in known[:-1])
        raise InvalidParameter(
            f"{name}= is no argument of {function}(), which takes {takes} and {known[-1]}=. "
            f"A method and its parameters are one spec: {call.format(spec + joint + entries)}."
        )


def _parsed(spec: str, changes: dict[str, Any]) -> Policy:
    _check_text(spec)
    name, arguments = name_and_arguments(spec)
    if hasattr(arguments.get("budget"), "spec_name") and "budget" in changes:
        new = changes.pop("budget")
        stage = arguments["budget"]
        arguments["budget"] = new if hasattr(new, "spec_name") else with_amount(stage, new)
    arguments |= changes
    build = None if name == "policy" else find(name)
    taken = build is not None and "prune" in build.parameters  # a parameter's name here
    slots = [slot for slot in (SLOTS if taken else EVERY_SLOT) if slot in arguments]
    if not hasattr(arguments.get("budget"), "spec_name") and "budget" in slots:
        slots.remove("budget")  # an amount, not a stage
    stages = {slot: _as_stage(arguments.pop(slot)) for slot in slots}
    if build is None:
        amount = {"budget": arguments.pop("budget")} if "budget" in changes else {}
        return _by_hand(spec, stages, arguments).but(**amount)
    if "budget" in stages and "budget" in build.parameters:
        arguments["budget"] = amount_of(stages["budget"])
    policy = build(**arguments)
    return policy.but(**stages) if stages else policy


def _check_text(spec: object) -> None:
    """Refuse a value that is neither a spec nor a policy, with an error that names what it is."""
    if isinstance(spec, str):
        return
    if isinstance(spec, Method):
        budget = "budget='20%'" if "budget" in spec.parameters else ""
        raise InvalidSpec(
            f"{spec.name} is a method, which makes a policy when it is called: "
            f"foveate.{spec.name}({budget})."
        )
    first = " Pass the model first, then the policy." if hasattr(spec, "forward") else ""
    if isinstance(spec, Sequence):
        first = " Pass one policy first, then the layers."
    raise InvalidSpec(
        f"{'None' if spec is None else f'this {type(spec).__name__}'} is no policy. Give a spec, "
        f"such as 'snapkv:budget=20%', or a policy, such as foveate.snapkv(budget=0.2).{first}"
    )


def _as_stage(value: Any) -> Any:
    """Build the stage that a bare word names, with its defaults: ``when=over_budget``."""
    return make_stage(value, {}) if isinstance(value, str) else value


def _by_hand(spec: str, stages: dict[str, Any], others: dict[str, Any]) -> Policy:
    if others:
        name = next(iter(others))
        raise InvalidSpec(f"a policy has no stage {short_repr(name)}. {suggest(name, EVERY_SLOT)}")
    for slot in ("score", "budget", "select"):
        if slot not in stages:
            raise InvalidSpec(
                f"{short_repr(spec)} has no {slot}: 'policy:' needs score, budget and select."
            )
    return Policy(**stages)
