"""What a request asks for, and what becomes of its prompt.

A request says so in ``SamplingParams.extra_args``, or over HTTP in ``vllm_xargs``:

    foveate_policy   one of the engine's policies by its name, or "full": the prompt is kept whole
    foveate_budget   another budget of that policy: "30%", 0.3, 256
    foveate_context  only the prompt's first so many tokens are compressed, before the rest is read;
                     what is kept of them follows from them alone, so that other requests that
                     begin with the same context and say the same share it compressed

The process that takes requests in refuses what cannot be served. The scheduler decides, when a
request comes to it, and workers do as they are told (``orders``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from foveate.errors import InvalidParameter, suggest
from foveate.policies.amount import Amount
from foveate.policies.parameters import short_repr
from foveate.policies.policy import Policy
from foveate.vllm.plans.boundaries import Boundaries, Every, Move
from foveate.vllm.plans.gap import Room
from foveate.vllm.plans.rooms import Key
from foveate.vllm.plans.settings import Settings, amounts_of_a_server

PREFIX = "foveate_"
NAMES = ("foveate_policy", "foveate_budget", "foveate_context")
FULL = "full"
REMEMBERED = 256
"""Policies at budgets that requests chose, which are not made anew. Clients choose budgets, so what
is remembered has an end.
"""


class Plan(NamedTuple):
    """Plan for a request: of a prompt of ``prompt`` tokens the first ``length`` are compressed by
    ``policy``, the engine's policy with the number ``chosen`` at the request's budget. Without a
    policy all is kept.

    ``context`` says that more of the prompt follows, which reads them compressed. ``boundaries``
    are those of the KV cache groups under policies, by their number. The request computes at most
    ``end`` tokens, and nobody reads what would be kept at the last of them; None if others do.
    ``amount`` and ``spec`` name the policy in an :attr:`order`.
    """

    prompt: int
    length: int
    chosen: int | None = None
    policy: Policy | None = None
    context: bool = False
    boundaries: Mapping[int, Boundaries] = {}
    end: int | None = None
    amount: Amount | None = None
    spec: str = ""

    @property
    def order(self) -> Plan:
        """The plan as it is sent to workers, which make the policy themselves."""
        if self.policy is None:
            return self
        return self._replace(policy=None, amount=self.policy.amount, spec=str(self.policy))

    @property
    def key(self) -> Key | None:
        """Values from which a prompt's boundaries follow; None where nothing is compressed."""
        if self.chosen is None or self.policy is None:
            return None
        return self.chosen, self.policy.amount, self.length

    def move(self, group: int, computed: int, end: int, block: int) -> Move | None:
        """Return the move of a step in that KV cache group, as :meth:`Boundaries.move` does."""
        boundaries = self.boundaries.get(group)
        return boundaries and boundaries.move(computed, end, block, last=self.end)

    @property
    def goes_on(self) -> bool:
        """Whether it is compressed at more than its prompt's end."""
        return any(each.every.tokens for each in self.boundaries.values())

    def stop(self, tokens: int) -> int | None:
        """Return where a step has to end that begins after so many tokens; None for anywhere."""
        ends = [each.after(tokens) for each in self.boundaries.values()]
        return min((end for end in ends if end is not None), default=None)

    def most(self, group: int, tokens: int, ahead: int) -> int:
        """Return the most slots that are held at once in that group on the way to so many tokens,
        while up to ``ahead`` steps are on their way.
        """
        boundaries = self.boundaries.get(group)
        return tokens if boundaries is None or not self.goes_on else boundaries.peak(tokens, ahead)

    def remembered(self, group: int) -> int:
        """Return how many of the first tokens lie in blocks that may be known by what they hold:
        nothing is ever moved there.
        """
        boundaries = self.boundaries.get(group)
        return self.length if boundaries is None else boundaries.untouched

    def readable(self, group: int) -> int:
        """Return how many of the first tokens may be read from blocks that another request has
        filled: none whose query a score needs.
        """
        boundaries = self.boundaries.get(group)
        if self.policy is None or boundaries is None:
            return self.length
        if self.policy.running:
            return 0
        first = boundaries.after(0) or self.length
        queries = self.policy.score.queries(boundaries.budget_at(first))
        return max(0, min(boundaries.untouched, first - queries))


class Offer:
    """The policies that requests may choose from."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self.policy: Callable[[int, Amount | None], Policy] = lru_cache(REMEMBERED)(self._policy)

    def plan(self, given: Mapping[str, Any] | None, prompt: int, block: int = 1) -> Plan:
        """Return the plan that these extra arguments request for a prompt of so many tokens.

        A context ends with a whole block of ``block`` tokens: what is left of it is kept.

        Raises:
            InvalidParameter: an unknown argument or policy, or a context that is no part of the
                prompt.
            InvalidBudget, ProfileMismatch: a budget that this policy cannot have.
        """
        extra = {name: value for name, value in (given or {}).items() if _ours(name)}
        for name in extra:
            if name not in NAMES:
                raise InvalidParameter(f"no request has {name!r}. {suggest(name, NAMES)}")
        context = _context(extra.get("foveate_context"), prompt)
        length = prompt if context is None else context // block * block
        amount = _amount(extra.get("foveate_budget"))
        chosen = self._number(extra.get("foveate_policy"))
        if chosen is None and amount is not None:
            raise InvalidParameter(
                f"foveate_budget={short_repr(extra['foveate_budget'])} beside "
                "foveate_policy='full', which keeps all."
            )
        policy = None if chosen is None else self.policy(chosen, amount)
        if context is not None and policy is not None and Every.of(policy.when).tokens:
            raise InvalidParameter(
                f"foveate_context={context} beside {policy}, under which what is kept of a context "
                "does not stay as it is. Leave it out, or choose a policy with when=after_prefill."
            )
        return Plan(prompt, length, chosen, policy, context is not None)

    @property
    def goes_on(self) -> bool:
        """Whether a request may be compressed at more than its prompt's end."""
        return any(Every.of(policy.when).tokens for policy in self._settings.policies)

    def _number(self, name: Any) -> int | None:
        """Of a policy by its name, the engine's own without one; None for the whole prompt."""
        names = self._settings.names
        if name is None or name == FULL:
            return 0 if name is None else None
        if not isinstance(name, str) or name not in names:
            raise InvalidParameter(
                f"foveate_policy={short_repr(name)} is not served here; these are: "
                f"{', '.join((*names, FULL))}. More are given at start, as 'policies'."
            )
        return names.index(name)

    def _policy(self, chosen: int, amount: Amount | None) -> Policy:
        policy = self._settings.policies[chosen]
        if amount is not None and amount != policy.amount:
            policy = policy.but(budget=amount)
            Room.of(policy.amount, 1)
        return policy


def _ours(name: Any) -> bool:
    return isinstance(name, str) and name.startswith(PREFIX)


def _amount(given: Any) -> Amount | None:
    """Return a budget as it is meant, however it is written: 1 is a token, and 1.0 the whole
    prompt; 0.3 and "30%" are one. Python takes 1, 1.0 and True for the same key.
    """
    if given is None:
        return None
    if not isinstance(given, (str, int, float)):
        raise InvalidParameter(f"foveate_budget={short_repr(given)}: budgets are single values.")
    with amounts_of_a_server():
        return Amount.of(given)


def _context(given: Any, prompt: int) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= prompt:
        raise InvalidParameter(
            f"foveate_context={short_repr(given)}: give how many of the prompt's {prompt} tokens "
            "the context has, images included."
        )
    return given
