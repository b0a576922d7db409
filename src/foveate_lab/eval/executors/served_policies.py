"""Policies that a server offers, and the arguments of a request that chooses one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foveate.compression.composition import policy as policy_of
from foveate.errors import FoveateError, InvalidParameter
from foveate_lab.eval.answering.reading import FULL
from foveate_lab.eval.executors.client import Client

_LABEL = re.compile(r'^foveate:prompts_total\{.*?policy="((?:[^"\\]|\\.)*)"', re.MULTILINE)


@dataclass(frozen=True)
class ServedPolicies:
    """Names of the policies at ``url``; none if the server is not Foveate's."""

    url: str
    names: tuple[str, ...]

    @classmethod
    def of(cls, client: Client) -> ServedPolicies:
        """Read the policies from the server's metrics, which start at 0 for each of them."""
        labels = dict.fromkeys(_LABEL.findall(client.metrics()))
        return cls(client.url, tuple(re.sub(r"\\(.)", r"\1", label) for label in labels))

    def arguments(self, spec: str) -> Mapping[str, Any]:
        """Return the part of a request's body that chooses a policy.

        Raises:
            InvalidParameter: the policy is not served.
        """
        if not self.names and spec == FULL:
            return {}
        if (choice := self._choice(spec)) is None:
            raise InvalidParameter(self._refusal(spec))
        return {"vllm_xargs": choice, "return_token_ids": True}

    def _choice(self, spec: str) -> dict[str, str] | None:
        """Return the served policy that equals a spec, or equals it but for the budget."""
        if spec in self.names:
            return {"foveate_policy": spec}
        for name in self.names:
            try:
                served, requested = policy_of(name), policy_of(spec)
                budget = str(requested.amount)
                if served.spec == requested.spec:
                    return {"foveate_policy": name}
                if served.but(budget=budget).spec == requested.spec:
                    return {"foveate_policy": name, "foveate_budget": budget}
            except FoveateError:  # a name of its own, a profile that is not here, no budget
                continue
        return None

    def _refusal(self, spec: str) -> str:
        if not self.names:
            return (
                f"{self.url} is not foveate serve, so it answers with its full cache alone, not "
                f"under {spec}. Give --methods full."
            )
        return (
            f"{spec} is not served at {self.url}. Served: {', '.join(self.names)}. Start the "
            f"server with --policies '{spec}'."
        )
