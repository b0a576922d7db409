"""A method is defined once: ``@method(Paper(...))`` on the function that builds its policy.

The name, the command line, the docs row, the citation and the conformance tests derive from that
definition. Other packages register theirs through the entry point group ``foveate.methods``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import Any, get_type_hints

from foveate.core.amount import Amount
from foveate.core.errors import InvalidParameter, InvalidSpec, UnknownMethod, suggest
from foveate.core.policy import Origin, Policy
from foveate.core.spec import SLOTS, check_plain, make_stage, parse_arguments

ENTRY_POINTS = "foveate.methods"


@dataclass(frozen=True, kw_only=True)
class Paper:
    """Where a method comes from."""

    title: str
    authors: tuple[str, ...]
    year: int
    venue: str
    key: str
    arxiv: str | None = None
    code: str | None = None

    @property
    def bibtex(self) -> str:
        """The paper's BibTeX entry."""
        lines = [f"  title = {{{self.title}}}", f"  author = {{{' and '.join(self.authors)}}}",
                 f"  year = {{{self.year}}}", f"  booktitle = {{{self.venue}}}"]  # fmt: skip
        if self.arxiv:
            lines += [f"  eprint = {{{self.arxiv}}}", "  archiveprefix = {arXiv}"]
        return f"@inproceedings{{{self.key},\n" + ",\n".join(lines) + "\n}"


class Method:
    """A named, cited way to make a policy. Call it with keyword arguments."""

    def __init__(self, function: Callable[..., Policy], paper: Paper | None):
        functools.update_wrapper(self, function)
        self.function = function
        self.paper = paper
        self.name = function.__name__
        self.signature = inspect.signature(function)

    @property
    def summary(self) -> str:
        """The first line of the method's docstring."""
        return inspect.cleandoc(self.function.__doc__ or "").split("\n")[0]

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The parameters that the method takes, all by keyword."""
        return self.signature.parameters

    def given(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Those arguments that differ from the defaults."""
        return {k: v for k, v in arguments.items() if v != self.parameters[k].default}

    def __call__(self, **arguments: Any) -> Policy:
        """The policy, which remembers the call for its spec.

        Raises:
            InvalidParameter: an unknown parameter, or one that is missing or out of range.
            InvalidBudget: a budget that cannot be met.
        """
        for key in arguments:
            if key not in self.parameters:
                raise InvalidParameter(
                    f"{self.name} has no parameter {key!r}. {suggest(key, self.parameters)}"
                )
        for key, parameter in self.parameters.items():
            if parameter.default is inspect.Parameter.empty and key not in arguments:
                example = "20%" if key == "budget" else "..."
                raise InvalidParameter(
                    f"{self.name} needs a {key}: '{self.name}:{key}={example}' as a spec, "
                    f"{self.name}({key}={example!r}) in Python."
                )
        if "budget" in arguments:
            arguments["budget"] = Amount.of(arguments["budget"])
        check_plain(get_type_hints(self.function), arguments)
        policy = self.function(**arguments)
        ordered = {k: arguments[k] for k in self.parameters if k in arguments}
        return replace(policy, origin=Origin(self, ordered, {}))

    def __repr__(self) -> str:
        return f"<method {self.name}{self.signature}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> Method:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (_lookup, (self.name,))


class Methods(Mapping[str, Method]):
    """All methods by name: the package's own, and those that other packages registered."""

    def __init__(self) -> None:
        self._own: dict[str, Method] = {}
        self._looked_abroad = False

    def add(self, new: Method) -> None:
        """Registers a method.

        Raises:
            InvalidParameter: the name is taken by another function.
        """
        old = self._own.get(new.name)
        if old is not None and old.function.__module__ != new.function.__module__:
            raise InvalidParameter(
                f"a method named {new.name!r} exists already, in {old.function.__module__}. "
                f"Rename the function in {new.function.__module__}."
            )
        self._own[new.name] = new

    def __getitem__(self, name: str) -> Method:
        if name not in self._own:
            self._look_abroad()
        if name not in self._own:
            raise UnknownMethod(f"no method named {name!r}. {suggest(name, self._own)}")
        return self._own[name]

    def __contains__(self, name: object) -> bool:
        self._look_abroad()
        return name in self._own

    def __iter__(self) -> Iterator[str]:
        self._look_abroad()
        return iter(sorted(self._own))

    def __len__(self) -> int:
        self._look_abroad()
        return len(self._own)

    def _look_abroad(self) -> None:
        """Loads the entry points, once; loading a module runs its ``@method`` definitions."""
        if self._looked_abroad:
            return
        self._looked_abroad = True
        for point in entry_points(group=ENTRY_POINTS):
            loaded = point.load()
            if isinstance(loaded, Method) and loaded.name not in self._own:
                self.add(loaded)


METHODS = Methods()


def method(paper: Paper | None = None) -> Callable[[Callable[..., Policy]], Method]:
    """Registers the function that builds a method's policy; all its parameters are keyword-only."""

    def register(function: Callable[..., Policy]) -> Method:
        new = Method(function, paper)
        for parameter in new.parameters.values():
            if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
                raise InvalidParameter(f"{new.name}: make {parameter.name!r} keyword-only.")
        METHODS.add(new)
        return new

    return register


def policy(spec: str | Policy, **changes: Any) -> Policy:
    """The policy that a spec string describes: "snapkv:budget=20%,window=16".

    Keyword arguments override what the spec says: ``policy("snapkv", budget=0.1)``.

    Raises:
        UnknownMethod: no method or stage of that name.
        InvalidSpec, InvalidParameter, InvalidBudget: the text does not parse, or a value is bad.
    """
    if isinstance(spec, Policy):
        return spec.but(**changes) if changes else spec
    name, _, rest = spec.partition(":")
    name = name.strip()
    if not name:
        raise InvalidSpec(f"{spec!r} names no method. Write for example 'snapkv:budget=20%'.")
    arguments = parse_arguments(rest)
    if hasattr(arguments.get("budget"), "spec_name") and "budget" in changes:
        new = changes.pop("budget")
        arguments["budget"] = (
            new
            if hasattr(new, "spec_name")
            else replace(arguments["budget"], amount=Amount.of(new))
        )
    arguments |= changes
    given = [slot for slot in SLOTS if slot in arguments]
    if not hasattr(arguments.get("budget"), "spec_name") and "budget" in given:
        given.remove("budget")  # an amount, not a stage
    stages = {slot: _as_stage(arguments.pop(slot)) for slot in given}
    if name == "policy":
        amount = {"budget": arguments.pop("budget")} if "budget" in changes else {}
        return _by_hand(spec, stages, arguments).but(**amount)
    build = METHODS[name]
    if "budget" in stages and "budget" in build.parameters:
        arguments["budget"] = stages["budget"].amount
    made = build(**arguments)
    return made.but(**stages) if stages else made


def _as_stage(value: Any) -> Any:
    """A bare word in a stage's place is that stage with its defaults: ``when=over_budget``."""
    return make_stage(value, {}) if isinstance(value, str) else value


def _by_hand(spec: str, stages: dict[str, Any], others: dict[str, Any]) -> Policy:
    if others:
        name = next(iter(others))
        raise InvalidSpec(f"a policy has no stage {name!r}. {suggest(name, SLOTS)}")
    for slot in ("score", "budget", "select"):
        if slot not in stages:
            raise InvalidSpec(f"{spec!r} has no {slot}: 'policy:' needs score, budget and select.")
    return Policy(**stages)


def _lookup(name: str) -> Method:
    return METHODS[name]
