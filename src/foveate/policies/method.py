"""Definitions of methods: ``@method("li2024snapkv")`` on the function that builds a policy.

The name, the command line, the docs row, the citation and the conformance tests derive from that
definition. A method's file imports all that it needs from here: ``Amount``, ``Policy``, ``method``
and ``stage``. Other packages register their methods through the entry point group
``foveate.methods``.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, get_type_hints

from foveate.errors import InvalidParameter, UnknownMethod, suggest
from foveate.policies import docstring
from foveate.policies.amount import Amount as Amount
from foveate.policies.gathering import GATHERINGS
from foveate.policies.heads import HEAD_READINGS, instruction_for, is_read
from foveate.policies.parameters import check, short_repr
from foveate.policies.policy import Origin
from foveate.policies.policy import Policy as Policy
from foveate.policies.registry import Registry, load_own_before
from foveate.policies.spec import SLOTS
from foveate.policies.spec import stage as stage


@dataclass(frozen=True, kw_only=True)
class Paper:
    """The paper of a method."""

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
        lines = [
            f"  title = {{{self.title}}}",
            f"  author = {{{' and '.join(self.authors)}}}",
            f"  year = {{{self.year}}}",
            f"  booktitle = {{{self.venue}}}",
        ]
        if self.arxiv:
            lines += [f"  eprint = {{{self.arxiv}}}", "  archiveprefix = {arXiv}"]
        return f"@inproceedings{{{self.key},\n" + ",\n".join(lines) + "\n}"


@dataclass(frozen=True, kw_only=True)
class Reference(Paper):
    """A paper of ``methods/references.bib``, with its entry there."""

    entry: str

    @property
    def bibtex(self) -> str:
        return self.entry


@functools.cache
def references() -> dict[str, Reference]:
    """Return the papers of ``methods/references.bib`` by citation key."""
    text = files("foveate").joinpath("methods", "references.bib").read_text(encoding="utf-8")
    return {paper.key: paper for paper in map(_parse_entry, text.strip().split("\n\n"))}


def _parse_entry(entry: str) -> Reference:
    """Parse a BibTeX entry that has one field a line."""
    fields = dict(re.findall(r"^  (\w+) = \{(.*)\},?$", entry, re.MULTILINE))
    return Reference(
        title=fields["title"],
        authors=tuple(fields["author"].split(" and ")),
        year=int(fields["year"]),
        venue=fields.get("booktitle") or fields["journal"],
        key=entry[entry.index("{") + 1 : entry.index(",")],
        arxiv=fields.get("eprint"),
        code=fields.get("code"),
        entry=entry,
    )


def find_paper(cited: Paper | str | None) -> Paper | None:
    """Return a paper itself, or the one of ``methods/references.bib`` with this citation key.

    Raises:
        InvalidParameter: a key that the file does not have.
    """
    if not isinstance(cited, str):
        return cited
    if cited not in references():
        raise InvalidParameter(
            f"no paper {short_repr(cited)} in methods/references.bib. "
            f"{suggest(cited, references())} Give a paper of your own as Paper(title=...)."
        )
    return references()[cited]


class Method:
    """A named, cited way to build a policy. Call it with keyword arguments."""

    def __init__(
        self,
        function: Callable[..., Policy],
        cited: Paper | str | None,
        adds: Sequence[str] = ("score", "select"),
        wraps: bool = False,
        foretold: str = "",
    ):
        functools.update_wrapper(self, function)
        self.function = function
        self.cited = cited
        self.adds, self.wraps = tuple(adds), wraps
        self.foretold = foretold
        self.name = function.__name__
        self.signature = inspect.signature(function)

    @property
    def names(self) -> tuple[str, ...]:
        """Name of the method, as a tuple like :attr:`Sum.names`."""
        return (self.name,)

    @functools.cached_property
    def paper(self) -> Paper | None:
        """The paper to cite."""
        return find_paper(self.cited)

    @property
    def papers(self) -> tuple[Paper, ...]:
        """The papers to cite."""
        return (self.paper,) if self.paper else ()

    @property
    def summary(self) -> str:
        """The first line of the method's docstring."""
        return self.docs.summary

    @functools.cached_property
    def docs(self) -> docstring.Docstring:
        """Parts of the method's docstring."""
        return docstring.read(self.function.__doc__)

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The parameters that the method takes, all by keyword."""
        return self.signature.parameters

    @functools.cached_property
    def hints(self) -> Mapping[str, Any]:
        """Type and range of each parameter."""
        return get_type_hints(self.function, include_extras=True)

    def non_default(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that differ from the defaults."""
        return {k: v for k, v in arguments.items() if v != self.parameters[k].default}

    def __call__(self, *unnamed: Any, **arguments: Any) -> Policy:
        """Build the policy, which remembers the call for its spec.

        Raises:
            InvalidParameter: a parameter is unknown, missing, passed without its name, or out of
                range.
            InvalidBudget: a budget that cannot be met.
        """
        if unnamed:
            first = next(iter(self.parameters), "")
            example = f"{first}={short_repr(unnamed[0])}" if first else ""
            raise InvalidParameter(
                f"{self.name} takes its parameters by name: {self.name}({example})."
            )
        for key in arguments:
            if key not in self.parameters:
                raise InvalidParameter(
                    f"{self.name} has no parameter {short_repr(key)}. "
                    f"{suggest(key, self.parameters)}"
                )
        for key, parameter in self.parameters.items():
            if parameter.default is inspect.Parameter.empty and key not in arguments:
                example = {"budget": "20%", "profile": "FILE"}.get(key, "...")
                hint = _profile_hint(self.name) if key == "profile" else ""
                raise InvalidParameter(
                    f"{self.name} needs a {key}: '{self.name}:{key}={example}' as a spec, "
                    f"{self.name}({key}={example!r}) in Python.{hint}"
                )
        if "budget" in arguments:
            arguments["budget"] = Amount.of(arguments["budget"])
        check(self.hints, arguments)
        policy = self.function(**arguments)
        ordered = {k: arguments[k] for k in self.parameters if k in arguments}
        return replace(policy, origin=Origin(self, ordered, {}))

    def __repr__(self) -> str:
        return f"<method {self.name}{self.signature}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> Method:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (_lookup, (self.name,))


def _profile_hint(name: str) -> str:
    """Return a sentence about how to create a profile for that method, if a command can."""
    if is_read(name):
        return f" {instruction_for(name)}."
    calibrated = name in HEAD_READINGS or name in GATHERINGS
    return f" 'foveate calibrate {name} --model MODEL' makes one." if calibrated else ""


class Methods(Registry[Method]):
    """All methods by name, in the order of their definition.

    The package's own come first, and of these the five papers; methods of other packages follow.
    """

    def add(self, new: Method) -> None:
        """Register a method.

        Raises:
            InvalidParameter: another function has the same name.
        """
        load_own_before(new.function.__module__)
        old = self._entries.get(new.name)
        if old is not None and old.function.__module__ != new.function.__module__:
            raise InvalidParameter(
                f"a method named {new.name!r} exists already, in {old.function.__module__}. "
                f"Rename the function in {new.function.__module__}."
            )
        self[new.name] = new

    def unknown(self, name: str) -> UnknownMethod:
        return UnknownMethod(f"no method named {short_repr(name)}. {suggest(name, self._entries)}")


METHODS = Methods()


def method(
    paper: Paper | str | None = None,
    *,
    adds: Sequence[str] = ("score", "select"),
    wraps: bool = False,
    foretold: str = "",
) -> Callable[[Callable[..., Policy]], Method]:
    """Register the function that builds a method's policy; all its parameters are keyword-only.

    Args:
        paper: a ``Paper``, or the key of one in ``methods/references.bib``.
        adds: the stages that the method adds to another one with a plus sign.
        wraps: in a sum, its score wraps the current one instead of replacing it.
        foretold: arguments ("profile=FILE") with which kept slots follow from a prompt's length
            alone, if they do not by default. Servers that free memory before they know scores name
            them.
    """
    if isinstance(adds, str) or not set(adds) <= set(SLOTS):
        raise InvalidParameter(f"adds={adds!r}: give a tuple of stages, of {SLOTS}.")

    def register(function: Callable[..., Policy]) -> Method:
        new = Method(function, paper, adds, wraps, foretold)
        for parameter in new.parameters.values():
            if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
                raise InvalidParameter(f"{new.name}: make {parameter.name!r} keyword-only.")
            if parameter.name in SLOTS and parameter.name != "budget":
                raise InvalidParameter(
                    f"{new.name}: {parameter.name!r} is a stage in every spec. Name the parameter "
                    "otherwise."
                )
        METHODS.add(new)
        return new

    return register


def _lookup(name: str) -> Method:
    return METHODS[name]
