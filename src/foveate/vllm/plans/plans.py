"""Plans of requests: the policy and budget that a request chooses, and its prompt's boundaries.

Requests choose in ``SamplingParams.extra_args``, or over HTTP in ``vllm_xargs``:

    foveate_policy   one of the engine's policies by its name, or "full": nothing is compressed
    foveate_budget   another budget of that policy: "30%", 0.3, 256
    foveate_context  only the prompt's first so many tokens are compressed, before the rest is read;
                     the kept pairs follow from these tokens alone, so that other requests with the
                     same context and arguments share it compressed

The process that accepts requests refuses the invalid ones. The scheduler makes the plan
when a request arrives, and workers follow it (``orders``).
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
from foveate.vllm.plans.settings import Settings, adapt_budget_errors

PREFIX = "foveate_"
NAMES = ("foveate_policy", "foveate_budget", "foveate_context")
FULL = "full"
REMEMBERED = 256
"""Number of cached policies at budgets that requests chose. Bounded, because clients may choose any
budget.
"""


class Plan(NamedTuple):
    """Plan for a request: of a prompt of ``prompt`` tokens the first ``length`` are compressed by
    ``policy``, the engine's policy number ``chosen`` at the request's budget. Without a policy
    nothing is compressed.

    ``context`` is True if more of the prompt follows, which reads these tokens compressed.
    ``boundaries`` are those of the compressed KV cache groups, by their number. ``end`` is the
    limit of tokens that the request computes, so that pairs kept there would never be read; None
    if other requests may read them. ``amount`` and ``spec`` name the policy in an :attr:`order`.
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
        """The plan as sent to workers: they build the policy from its amount and check its spec."""
        if self.policy is None:
            return self
        return self._replace(policy=None, amount=self.policy.amount, spec=str(self.policy))

    @property
    def key(self) -> Key | None:
        """Values that determine a prompt's boundaries; None if nothing is compressed."""
        if self.chosen is None or self.policy is None:
            return None
        return self.chosen, self.policy.amount, self.length

    def kept(self, weights: Mapping[int, int]) -> float:
        """Return the tokens kept of the prompt at its end, on average over the compressed KV cache
        groups with these ``weights``, such as their cells.
        """
        boundaries = self.boundaries.items()
        evicted = sum(each.evicted * weights[group] for group, each in boundaries)
        return self.prompt - evicted / sum(weights.values())

    def move(self, group: int, computed: int, end: int, block: int) -> Move | None:
        """Return the move of a step in that KV cache group, as :meth:`Boundaries.move` does."""
        boundaries = self.boundaries.get(group)
        return boundaries and boundaries.move(computed, end, block, last=self.end)

    @property
    def recompresses(self) -> bool:
        """True if the request is compressed at other tokens than its prompt's end, too."""
        return any(each.every.tokens for each in self.boundaries.values())

    def stop(self, tokens: int) -> int | None:
        """Return the token where a step that begins after ``tokens`` must end; None for any."""
        ends = [each.after(tokens) for each in self.boundaries.values()]
        return min((end for end in ends if end is not None), default=None)

    def settle(self, tokens: int, known: int, end: int) -> int:
        """Return the token where a step must end that begins after ``tokens``, up to ``end``.

        The tokens after the first ``known`` are drafts, which may be taken back. So a pass of the
        answer that the policy observes has none of them.
        """
        for boundaries in self.boundaries.values():
            boundary = boundaries.after(tokens)
            if end > known and boundary is not None and boundary > self.length and self.policy:
                queries = max(1, self.policy.score.queries(boundaries.budget_at(boundary)))
                first = tokens if self.policy.running else boundary - queries
                end = min(end, max(known, first))
        return end

    def peak(self, group: int, tokens: int, ahead: int) -> int:
        """Return the largest number of slots in use at once in that group until so many tokens are
        processed, with up to ``ahead`` steps in flight.
        """
        boundaries = self.boundaries.get(group)
        if boundaries is None or not self.recompresses:
            return tokens
        return boundaries.peak(tokens, ahead)

    def cacheable(self, group: int) -> int:
        """Return the number of first tokens whose blocks vLLM's prefix cache may know by their
        hash: no move ever writes to these.
        """
        boundaries = self.boundaries.get(group)
        return self.length if boundaries is None else boundaries.untouched

    def readable(self, group: int) -> int:
        """Return the number of first tokens that may come from another request's blocks: a token
        whose query the score needs must be computed.
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
    """Policies that requests may choose from."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self.policy: Callable[[int, Amount | None], Policy] = lru_cache(REMEMBERED)(self._policy)

    def plan(self, extra_args: Mapping[str, Any] | None, prompt: int, block: int = 1) -> Plan:
        """Return the plan for a request with these ``extra_args`` and a prompt of so many tokens.

        A context is cut down to whole blocks of ``block`` tokens; the rest of it is kept.

        Raises:
            InvalidParameter: an unknown argument or policy, or a context longer than the prompt.
            InvalidBudget, ProfileMismatch: a budget that this policy cannot have.
        """
        extra = {name: value for name, value in (extra_args or {}).items() if _is_ours(name)}
        for name in extra:
            if name not in NAMES:
                raise InvalidParameter(f"unknown argument {name!r}. {suggest(name, NAMES)}")
        context = _context(extra.get("foveate_context"), prompt)
        length = prompt if context is None else context // block * block
        amount = _amount(extra.get("foveate_budget"))
        chosen = self._number_of(extra.get("foveate_policy"))
        if chosen is None and amount is not None:
            raise InvalidParameter(
                f"foveate_budget={short_repr(extra['foveate_budget'])} has no effect with "
                "foveate_policy='full', which keeps all tokens. Leave one of them out."
            )
        policy = None if chosen is None else self.policy(chosen, amount)
        if context is not None and policy is not None and Every.of(policy.when).tokens:
            raise InvalidParameter(
                f"foveate_context={context} cannot be combined with {policy}, which compresses a "
                "context again later. Leave it out, or choose a policy with when=after_prefill."
            )
        return Plan(prompt, length, chosen, policy, context is not None)

    @property
    def recompresses(self) -> bool:
        """True if any policy compresses at other tokens than the prompt's end."""
        return any(Every.of(policy.when).tokens for policy in self._settings.policies)

    def _number_of(self, name: Any) -> int | None:
        """Return the number of the policy with that name: 0 (the engine's own) for None, None for
        "full".
        """
        names = self._settings.names
        if name is None or name == FULL:
            return 0 if name is None else None
        if not isinstance(name, str) or name not in names:
            raise InvalidParameter(
                f"foveate_policy={short_repr(name)} is not served here. Choose one of "
                f"{', '.join((*names, FULL))}, or start the server with more 'policies'."
            )
        return names.index(name)

    def _policy(self, chosen: int, amount: Amount | None) -> Policy:
        policy = self._settings.policies[chosen]
        if amount is not None and amount != policy.amount:
            policy = policy.but(budget=amount)
            Room.of(policy.amount, 1)
        return policy


def _is_ours(name: Any) -> bool:
    return isinstance(name, str) and name.startswith(PREFIX)


def _amount(raw: Any) -> Amount | None:
    """Parse a budget before it becomes a cache key: 1 is a token and 1.0 the whole prompt, but
    Python takes 1, 1.0 and True for the same key.
    """
    if raw is None:
        return None
    if not isinstance(raw, (str, int, float)):
        raise InvalidParameter(
            f"foveate_budget={short_repr(raw)}: give one value, such as 0.2, '20%' or 256."
        )
    with adapt_budget_errors():
        return Amount.of(raw)


def _context(raw: Any, prompt: int) -> int | None:
    if raw is None:
        return None
    if isinstance(raw, bool) or not isinstance(raw, int) or not 1 <= raw <= prompt:
        raise InvalidParameter(
            f"foveate_context={short_repr(raw)}: give the number of tokens of the context, from 1 "
            f"to the prompt's {prompt}, images included."
        )
    return raw
