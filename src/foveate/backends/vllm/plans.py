"""What a request asks for, and what becomes of its prompt.

A request says so in ``SamplingParams.extra_args``, or over HTTP in ``vllm_xargs``:

    foveate_policy   one of the engine's policies by its name, or "full": the prompt is kept whole
    foveate_budget   another budget of that policy: "30%", 0.3, 256
    foveate_context  only the prompt's first so many tokens are compressed, before the rest is read;
                     what is kept of them follows from them alone, so that other requests that
                     begin with the same context and say the same share it compressed

The process that takes requests in refuses what cannot be served; the scheduler and every worker
read the same again, and come to the same plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from foveate.backends.vllm.gap import Room
from foveate.backends.vllm.settings import Settings
from foveate.core.amount import Amount
from foveate.core.parameters import shown
from foveate.core.policy import Policy
from foveate.errors import InvalidParameter, suggest

PREFIX = "foveate_"
NAMES = ("foveate_policy", "foveate_budget", "foveate_context")
FULL = "full"


class Plan(NamedTuple):
    """The first ``length`` tokens of a prompt are compressed by ``policy``, which is that of the
    engine's policies with the number ``chosen``, at an amount of its own. Without one all is kept.

    ``context`` says that more of the prompt follows, which reads them compressed.
    """

    length: int
    chosen: int | None = None
    policy: Policy | None = None
    context: bool = False

    @property
    def key(self) -> tuple[int, Amount, int] | None:
        """What a prompt's gap follows from; None where there is none."""
        if self.chosen is None or self.policy is None:
            return None
        return self.chosen, self.policy.amount, self.length

    def unasked(self, budget: int) -> int:
        """How many of the first tokens have queries that no score asks for, at that budget: these
        tokens may be read from blocks that another request has filled.
        """
        if self.policy is None:
            return self.length
        if self.policy.running:
            return 0
        return max(0, self.length - self.policy.score.queries(budget))


class Offer:
    """The policies that requests may choose from."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._chosen: dict[tuple[Any, ...], tuple[int | None, Policy | None]] = {}

    def plan(self, given: Mapping[str, Any] | None, prompt: int, block: int = 1) -> Plan:
        """What a request with these extra arguments asks for its prompt of so many tokens.

        A context ends with a whole block of ``block`` tokens: what is left of it is kept.

        Raises:
            InvalidParameter: an unknown argument or policy, or a context that is no part of the
                prompt.
            InvalidBudget, ProfileMismatch: a budget that this policy cannot have.
        """
        asked = {name: value for name, value in (given or {}).items() if name.startswith(PREFIX)}
        for name in asked:
            if name not in NAMES:
                raise InvalidParameter(f"no request has {name!r}. {suggest(name, NAMES)}")
        context = _context(asked.get("foveate_context"), prompt)
        length = prompt if context is None else context // block * block
        key = asked.get("foveate_policy"), asked.get("foveate_budget")
        if not all(isinstance(value, (str, int, float, type(None))) for value in key):
            raise InvalidParameter(f"{shown(asked)}: policies and budgets are single values.")
        if key not in self._chosen:
            self._chosen[key] = self._choice(*key)
        return Plan(length, *self._chosen[key], context is not None)

    def _choice(self, name: Any, budget: Any) -> tuple[int | None, Policy | None]:
        names = self._settings.names
        if name == FULL:
            if budget is not None:
                raise InvalidParameter(
                    f"foveate_budget={budget!r} beside foveate_policy='full', which keeps all."
                )
            return None, None
        if name is not None and name not in names:
            raise InvalidParameter(
                f"foveate_policy={shown(name)} is not served here; these are: "
                f"{', '.join((*names, FULL))}. More are given at start, as 'policies'."
            )
        index = 0 if name is None else names.index(name)
        policy = self._settings.policies[index]
        if budget is not None:
            policy = policy.but(budget=Amount.of(budget))
            Room.of(policy.amount, 1)
        return index, policy


def _context(given: Any, prompt: int) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= prompt:
        raise InvalidParameter(
            f"foveate_context={shown(given)}: give how many of the prompt's {prompt} tokens the "
            "context has, images included."
        )
    return given


class Rooms:
    """What one KV cache group keeps of prompts, in blocks of ``block`` tokens; asked of every
    request in every step.
    """

    def __init__(self, rooms: Sequence[Room], block: int):
        self._rooms, self.block = rooms, block
        self._room = lru_cache(maxsize=256)(lambda index, amount: self._rooms[index].at(amount))
        self._gap: Callable[[tuple[int, Amount, int]], int] = lru_cache(maxsize=8192)(
            lambda key: self._room(*key[:2]).gap(key[2], block)
        )

    def gap(self, plan: Plan) -> int:
        """The blocks that the prompt leaves."""
        return 0 if plan.key is None else self._gap(plan.key)

    def kept(self, plan: Plan) -> int:
        """Tokens kept, per KV head, of those that are compressed."""
        return plan.length - self.gap(plan) * self.block

    def budget(self, plan: Plan) -> int:
        """The budget that scores and selections are told."""
        if plan.key is None:
            return plan.length
        return self._room(*plan.key[:2]).budget(plan.length, self.block)

    def shared(self, plan: Plan) -> int:
        """How many of the first tokens may lie in blocks that several requests read: where some are
        freed, those in the gap.
        """
        gap = self.gap(plan)
        return gap * self.block if gap else plan.length


@lru_cache(maxsize=64)
def rooms_in(rooms: tuple[Room, ...], block: int) -> Rooms:
    """The same object for the same rooms."""
    return Rooms(rooms, block)
