"""Lists of ``docs/served_methods.md``: methods that vLLM serves, according to its plug-in."""

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
HEADS = 8  # KV heads of a layer; any even number, so that two workers can share them


class Answer(NamedTuple):
    """The plug-in's answer for a method: served by ``policy``, or refused because of ``why``."""

    name: str
    policy: Policy | None
    why: str = ""

    @property
    def in_parallel(self) -> bool:
        """Support for several workers that share the heads."""
        if self.policy is None:
            return False
        try:
            check_parallel(self.policy, 2, HEADS)
        except UnsupportedPolicy:
            return False
        return True


def answers() -> Iterator[Answer]:
    """Yield the answer for each method, at a budget and otherwise with its defaults."""
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
    """Shorten a refusal to its first sentence, and a stage to its name."""
    after = message.partition("cannot be served by vLLM: ")[2] or message
    sentence = after.split(". ")[0].split("; ")[0].rstrip(".")
    return re.sub(r"(\w+)\([^ ]*\)", r"`\1`", sentence)


def as_they_are() -> str:
    """List the methods that need only a budget: for any number of workers, and for one."""
    served = [answer for answer in answers() if answer.policy is not None]
    several, alone = (
        ", ".join(f"`{answer.name}`" for answer in served if answer.in_parallel == kind)
        for kind in (True, False)
    )
    return f"* With any number of workers: {several}.\n* With one worker: {alone}."


def with_arguments() -> str:
    """Return one row per method that is served only with the arguments in its definition."""
    rows = ["| method | served as | without them |", "|---|---|---|"]
    for name, policy, why in answers():
        arguments = foveate.METHODS[name].foretold
        if policy is None and arguments:
            rows.append(f"| `{name}` | `{name}:budget={BUDGET},{arguments}` | {why} |")
    return "\n".join(rows)


def with_profiles() -> str:
    """List the methods that need a profile."""
    return ", ".join(f"`{answer.name}`" for answer in answers() if _needs_profile(answer)) + "."


def refused() -> str:
    """Return one row per reason for a refusal, with its methods."""
    owners: dict[str, list[str]] = {}
    for answer in answers():
        is_served = answer.policy is not None or foveate.METHODS[answer.name].foretold
        if not is_served and not _needs_profile(answer):
            owners.setdefault(answer.why, []).append(f"`{answer.name}`")
    rows = [f"| {', '.join(names)} | {why} |" for why, names in sorted(owners.items())]
    return "\n".join(["| methods | in the way |", "|---|---|", *rows])


def _needs_profile(answer: Answer) -> bool:
    return f"{answer.name} needs a profile" in answer.why
