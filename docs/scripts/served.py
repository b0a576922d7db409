"""Which methods vLLM serves, for ``docs/served_methods.md``: as its plug-in itself answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import foveate
from foveate.errors import FoveateError, UnsupportedPolicy
from foveate.policies.policy import Policy
from foveate.vllm.plans.settings import check_policy
from foveate.vllm.startup.support import check_parallel

BUDGET = "20%"
HEADS = 8  # of a layer; any number that two workers can share


class Answer(NamedTuple):
    """What is said of a method: served by ``policy``, or refused with ``why``."""

    name: str
    policy: Policy | None
    why: str = ""

    @property
    def in_parallel(self) -> bool:
        """Whether several workers can share its heads."""
        if self.policy is None:
            return False
        try:
            check_parallel(self.policy, 2, HEADS)
        except UnsupportedPolicy:
            return False
        return True


def answers() -> Iterator[Answer]:
    """One of each method, at a budget and else by default."""
    for name, method in foveate.METHODS.items():
        if name == "full":
            continue
        budget = f":budget={BUDGET}" if "budget" in method.parameters else ""
        try:
            policy = foveate.policy(f"{name}{budget}")
            check_policy(policy)
        except FoveateError as error:
            yield Answer(name, None, _reason(str(error)))
        else:
            yield Answer(name, policy)


def _reason(message: str) -> str:
    """The stage that is in the way, without its arguments, and why: the first sentence."""
    after = message.partition("cannot be served by vLLM: ")[2] or message
    sentence = after.split(". ")[0].split("; ")[0].rstrip(".")
    return re.sub(r"(\w+)\([^ ]*\)", r"`\1`", sentence)


def as_they_are() -> str:
    """The methods that need nothing but a budget, those of one worker alone by themselves."""
    served = [one for one in answers() if one.policy is not None]
    several, alone = (
        ", ".join(f"`{one.name}`" for one in served if one.in_parallel == kind)
        for kind in (True, False)
    )
    return f"* With any number of workers: {several}.\n* With one worker: {alone}."


def with_arguments() -> str:
    """One row a method that is served under arguments that it names itself."""
    rows = ["| method | served as | without them |", "|---|---|---|"]
    for one in answers():
        method = foveate.METHODS[one.name]
        if one.policy is None and method.foretold:
            spec = f"{one.name}:budget={BUDGET},{method.foretold}"
            rows.append(f"| `{one.name}` | `{spec}` | {one.why} |")
    return "\n".join(rows)


def with_profiles() -> str:
    """The methods that are none without a profile."""
    return ", ".join(f"`{one.name}`" for one in answers() if _profiled(one)) + "."


def refused() -> str:
    """One row a reason: the stage that is in the way, and the methods that have it."""
    owners: dict[str, list[str]] = {}
    for one in answers():
        if one.policy is None and not foveate.METHODS[one.name].foretold and not _profiled(one):
            owners.setdefault(one.why, []).append(f"`{one.name}`")
    rows = [f"| {', '.join(names)} | {why} |" for why, names in sorted(owners.items())]
    return "\n".join(["| methods | in the way |", "|---|---|", *rows])


def _profiled(one: Answer) -> bool:
    return f"{one.name} needs a profile" in one.why
