"""Specs to policies, and methods that add up: ``mixkv+prefixkv+lookm.merge:budget=10%``, and what
is pruned before them: ``fastv.prune(keep=50%)+mixkv:budget=10%``.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from foveate.compression.dividing import check_one_budget
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
from foveate.policies.parameters import shown
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
"""What compresses where no policy is named."""


class Term(NamedTuple):
    """One method of a sum: all that it adds, or one stage; and parameters of its own."""

    method: Method
    slots: tuple[str, ...]
    arguments: Mapping[str, Any]
    text: str

    def but(self, arguments: Mapping[str, Any]) -> Term:
        """The same with other parameters of its own."""
        name, given = self.text.partition("(")[0], print_arguments(arguments)
        return self._replace(arguments=arguments, text=f"{name}({given})" if given else name)


class PruneTerm(NamedTuple):
    """What stands before all methods of a sum: the stage that says which tokens are computed, and
    the paper that it is of.
    """

    stage: Prune
    paper: Paper | None
    text: str

    def but(self, stage: Prune) -> PruneTerm:
        """The same way to prune with other parameters."""
        name, given = self.text.partition("(")[0], print_value(stage).partition("(")[2]
        return self._replace(stage=stage, text=f"{name}({given}")


class Sum:
    """Methods added up, from left to right, and what is pruned before them. It is called as a
    method is.

    The first one's policy is the start. Every other one brings along the stages that it adds
    (``Method.adds``, or the one named after a dot), in the place of those that are there; a score
    that wraps others (``Method.wraps``) wraps the one that is there. Parameters go to every method
    that has them, unless it has them in parentheses; a profile goes to the method that it is of.
    """

    summary = "Several methods added up."
    paper: Paper | None = None

    def __init__(self, terms: list[Term], prune: PruneTerm | None = None):
        self.terms, self.prune = terms, prune
        first = [] if prune is None else [prune.text]
        self.name = "+".join([*first, *(term.text for term in terms)])

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the methods it consists of."""
        return tuple(term.method.name for term in self.terms)

    @property
    def papers(self) -> tuple[Paper, ...]:
        """The papers to cite, in order."""
        pruned = () if self.prune is None or self.prune.paper is None else (self.prune.paper,)
        theirs = (p for term in self.terms for p in term.method.papers)
        return tuple(dict.fromkeys((*pruned, *theirs)))

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The parameters of all."""
        parameters: dict[str, inspect.Parameter] = {}
        for term in self.terms:
            parameters = {**term.method.parameters, **parameters}
        return {name: p for name, p in parameters.items() if any(True for _ in self._takers(name))}

    def given(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Those arguments that differ from a method's default."""
        return {
            name: value
            for name, value in arguments.items()
            if any(term.method.parameters[name].default != value for term in self._takers(name))
        }

    def __call__(self, **arguments: Any) -> Policy:
        """The policy, which remembers the call for its spec.

        Raises:
            InvalidParameter: a parameter that no method has, or that changes nothing here.
            InvalidBudget: a budget that cannot be met.
        """
        for name in arguments:
            if name not in self.parameters:
                raise InvalidParameter(
                    f"no method of {self.name} has a parameter {shown(name)}. "
                    f"{suggest(name, self.parameters)}"
                )
        if "budget" in arguments:
            arguments["budget"] = Amount.of(arguments["budget"])
        made = self._sum(arguments)
        self._refuse_what_changes_nothing(arguments, made)
        ordered = {name: arguments[name] for name in self.parameters if name in arguments}
        prune = None if self.prune is None else self.prune.stage
        return replace(made, prune=prune, origin=Origin(self, ordered, {}))

    def with_stages(
        self, arguments: Mapping[str, Any], stages: Mapping[str, Any]
    ) -> tuple[Sum, dict[str, Any]]:
        """The sum and its arguments where what was ``auto`` is as in these stages."""
        prune, terms, whole = self.prune, self.terms, dict(arguments)
        if prune is not None and "prune" in stages:
            prune = prune.but(stages["prune"])
        if "store" in stages:  # one without bits is going to stand in the place of a method's
            bits = {"bits": getattr(stages["store"], "bits", 8)}
            terms = [
                term.but({**term.arguments, **bits}) if _is_open(term.arguments) else term
                for term in terms
            ]
            whole |= bits if _is_open(whole) else {}
        return Sum(terms, prune), whole

    def _refuse_what_changes_nothing(self, arguments: Mapping[str, Any], made: Policy) -> None:
        """A parameter of a stage that another method's stage replaced would silently do nothing.
        One that is a taker's default may be said: tables that compare write one window into all.
        """
        for name in self.given(arguments):
            usual = [term.method.parameters[name].default for term in self._takers(name)]
            if arguments[name] in usual:
                continue
            takers = " and ".join(term.method.name for term in self._takers(name))
            if self._equals(made, self.terms, _otherwise(name, arguments)):
                raise InvalidParameter(_changes_nothing(name, arguments[name], self.name, takers))
        for place, term in enumerate(self.terms):
            for name in term.method.given(term.arguments):
                other = term._replace(arguments=_otherwise(name, term.arguments))
                terms = [*self.terms[:place], other, *self.terms[place + 1 :]]
                if self._equals(made, terms, arguments):
                    value, method = term.arguments[name], term.method.name
                    raise InvalidParameter(_changes_nothing(name, value, self.name, method))

    @staticmethod
    def _equals(made: Policy, terms: list[Term], arguments: Mapping[str, Any]) -> bool:
        """Whether other terms or arguments add up to the same; what cannot be made differs."""
        try:
            return Sum(terms)._sum(arguments) == made
        except FoveateError:
            return False

    def _takers(self, name: str) -> list[Term]:
        """The methods that a parameter of the whole goes to."""
        return [t for t in self.terms if name in t.method.parameters and name not in t.arguments]

    def _sum(self, arguments: Mapping[str, Any]) -> Policy:
        made: Policy | None = None
        amount: Amount | None = None
        for term in self.terms:
            theirs = {n: v for n, v in arguments.items() if self._is_for(term, n, v)}
            policy, wanted = _built(term.method, {**theirs, **term.arguments})
            if made is None or "budget" in term.slots:
                amount = wanted
            made = policy if made is None else _added(made, policy, term)
        if made is None:
            raise InvalidSpec("a sum of no methods.")
        if amount is not None:
            made = replace(made, budget=replace(made.budget, amount=amount))  # type: ignore[type-var]
        return replace(made, origin=None)

    def _is_for(self, term: Term, name: str, value: Any) -> bool:
        """Whether a parameter of the whole goes to this method. A profile says itself whose it is:
        where several methods have one, only that method gets it, if it is among them.
        """
        if name not in term.method.parameters:
            return False
        takers = [one.method.name for one in self._takers(name)]
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


def _changes_nothing(name: str, value: Any, whole: str, method: str) -> str:
    return (
        f"{name}={value} changes nothing in {whole}: the stages that {method} would use it in are "
        "others' here. Leave it out."
    )


def _built(method: Method, arguments: Mapping[str, Any]) -> tuple[Policy, Amount | None]:
    """A term's policy, and its budget where that cannot hold what the method itself protects: the
    selection may be another's, so it is the sum that has to hold it.
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
    """The arguments without one of them; a budget, which is never left out, is another one."""
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
    """The method, or the sum of methods, that a name stands for.

    Raises:
        UnknownMethod: no method of that name.
        InvalidSpec: a term that is not of the form method, method.stage, method(key=value) or
            method.stage(key=value), or a prune stage that does not stand first, or stands alone.
    """
    if name.isidentifier():
        return METHODS[name]
    parts = [part.strip() for part in split(name, "+")]
    if not all(parts):
        raise InvalidSpec(f"{shown(name)} adds nothing: there is no method beside a plus sign.")
    prune = _prune_term(parts[0])
    if prune is not None and len(parts) == 1:
        raise InvalidSpec(
            f"{shown(name)} says what is computed, and not what is kept of that: add a method "
            f"behind it. '{name}+full' keeps all of it."
        )
    rest = parts[1:] if prune else parts
    return Sum([_term(part, first=not place) for place, part in enumerate(rest)], prune)


def _prune_term(text: str) -> PruneTerm | None:
    """What ``NAME.prune(key=value)`` says; None for any other term.

    Raises:
        UnknownMethod: nothing of that name prunes.
    """
    match = _TERM.fullmatch(text) or _STAGE_LAST.fullmatch(text)
    if match is None or match["stage"] != "prune":
        return None
    name = match["method"]
    if name not in PRUNES:
        raise UnknownMethod(f"nothing named {shown(name)} prunes. {suggest(name, PRUNES)}")
    made = make_stage(PRUNES[name].stage_name, parse_arguments(match["arguments"] or ""))
    given = print_value(made).partition("(")[2]
    return PruneTerm(made, PRUNES[name].paper, f"{name}.prune({given}")


def _term(text: str, first: bool) -> Term:
    match = _TERM.fullmatch(text) or _STAGE_LAST.fullmatch(text)
    if match is None:
        raise InvalidSpec(
            f"{shown(text)} is no method of a sum: write method, method.stage or method(key=value)."
            + _meant(text)
        )
    if match["stage"] == "prune":
        raise InvalidSpec(
            f"{shown(text)}: what is pruned has never been computed, so it stands first: "
            f"'{text}+snapkv:budget=20%'."
        )
    method, slot = METHODS[match["method"]], match["stage"]
    arguments = parse_arguments(match["arguments"] or "")
    if slot is not None and (first or slot not in SLOTS):
        raise InvalidSpec(
            f"{shown(text)}: the first method of a sum gives all its stages."
            if first
            else f"{shown(text)}: a method has no stage {slot!r}. {suggest(slot, SLOTS)}"
        )
    printed = f"({print_arguments(arguments)})" if arguments else ""
    label = f"{method.name}.{slot}" if slot else method.name
    return Term(method, (slot,) if slot else method.adds, arguments, label + printed)


def _meant(text: str) -> str:
    """The method that a text is like, or the text with a colon before its parameters."""
    name, _, rest = text.partition(" ")
    if rest and name in METHODS:
        return f" A colon stands between a method and its parameters: '{name}:{rest.strip()}'."
    meant = suggest(text, METHODS)
    return f" {meant}" if meant.startswith("Did") else ""


def name_and_arguments(spec: str) -> tuple[str, dict[str, Any]]:
    """What stands before a spec's colon, and the values after it.

    Raises:
        InvalidSpec: no name, or a text that does not parse.
    """
    name, *rest = split(spec, ":")
    if not name.strip():
        raise InvalidSpec(f"{shown(spec)} names no method. Write for example 'snapkv:budget=20%'.")
    return name.strip(), parse_arguments(":".join(rest))


def policy(spec: Policy | str, **changes: Any) -> Policy:
    """The policy that a spec string describes: "snapkv:budget=20%,window=16".

    Keyword arguments override what the spec says: ``policy("snapkv", budget=0.1)``. Methods add up:
    "mixkv+prefixkv+lookm.merge:budget=10%" (see :class:`Sum`).

    Raises:
        UnknownMethod: no method or stage of that name.
        InvalidSpec, InvalidParameter, InvalidBudget: the text does not parse, or a value is bad.
        InvalidSpec: neither a text nor a policy.
        InvalidBudget: something is "auto", and there is no budget to divide.
    """
    if isinstance(spec, Policy):
        made = spec.but(**changes) if changes else spec
    else:
        made = _parsed(spec, changes)
    check_one_budget(made)
    return made


def refuse_unknown(
    call: str, known: Sequence[str], policy: object, unknown: Mapping[str, Any]
) -> None:
    """Refuse arguments that a function of a policy does not take, and show what to write instead.

    Args:
        call: how to call it, with {} for a spec: 'compress(model, "{}")'.
        known: its arguments.
        policy: what was given in the policy's place.
        unknown: all arguments that it does not take.

    Raises:
        InvalidParameter: there is one.
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
        takes = ", ".join(f"{each}=" for each in known[:-1])
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
    taken = build is not None and "prune" in build.parameters  # by a method, as its parameter
    given = [slot for slot in (SLOTS if taken else EVERY_SLOT) if slot in arguments]
    if not hasattr(arguments.get("budget"), "spec_name") and "budget" in given:
        given.remove("budget")  # an amount, not a stage
    stages = {slot: _as_stage(arguments.pop(slot)) for slot in given}
    if build is None:
        amount = {"budget": arguments.pop("budget")} if "budget" in changes else {}
        return _by_hand(spec, stages, arguments).but(**amount)
    if "budget" in stages and "budget" in build.parameters:
        arguments["budget"] = amount_of(stages["budget"])
    made = build(**arguments)
    return made.but(**stages) if stages else made


def _check_text(spec: object) -> None:
    """Says of what is given in a policy's place what it is instead."""
    if isinstance(spec, str):
        return
    if isinstance(spec, Method):
        budget = "budget='20%'" if "budget" in spec.parameters else ""
        raise InvalidSpec(
            f"{spec.name} is a method, which makes a policy when it is called: "
            f"foveate.{spec.name}({budget})."
        )
    first = " The model comes first, the policy after it." if hasattr(spec, "forward") else ""
    if isinstance(spec, Sequence):
        first = " One policy; it comes first, the layers after it."
    raise InvalidSpec(
        f"{'None' if spec is None else f'this {type(spec).__name__}'} is no policy. Give a spec, "
        f"such as 'snapkv:budget=20%', or a policy, such as foveate.snapkv(budget=0.2).{first}"
    )


def _as_stage(value: Any) -> Any:
    """A bare word in a stage's place is that stage with its defaults: ``when=over_budget``."""
    return make_stage(value, {}) if isinstance(value, str) else value


def _by_hand(spec: str, stages: dict[str, Any], others: dict[str, Any]) -> Policy:
    if others:
        name = next(iter(others))
        raise InvalidSpec(f"a policy has no stage {shown(name)}. {suggest(name, EVERY_SLOT)}")
    for slot in ("score", "budget", "select"):
        if slot not in stages:
            raise InvalidSpec(
                f"{shown(spec)} has no {slot}: 'policy:' needs score, budget and select."
            )
    return Policy(**stages)
