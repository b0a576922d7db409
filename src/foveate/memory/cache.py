"""What the KV cache takes under a policy: the library's own arithmetic, from lengths alone. And
vLLM's pool of its blocks: how many tokens it holds, and how many requests at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from foveate.cache.pairs.dense import GROWTH
from foveate.cache.pairs.form import COLUMN
from foveate.compression.byte_budget import Bytes
from foveate.compression.dividing import divided
from foveate.errors import FoveateError, InvalidInput
from foveate.memory.request import Request, Unknown
from foveate.memory.trace import Cache, Trace
from foveate.policies.policy import Policy
from foveate.policies.protocols import Weighs
from foveate.vllm.plans.settings import check_policy
from foveate.vllm.plans.tiers import DEFAULT_TIERS, rooms_of


def full(trace: Trace, request: Request) -> Cache:
    """The stock cache. Layers with windows and states do not grow; the former shrink."""
    whole = trace.cache - _others(trace.layers, trace) + _others(trace.settled, trace)
    rest = whole + request.answer * _pair(trace) * request.batch
    return Cache("full", trace.tokens, trace.cache, trace.cache, rest)


def under(policy: Policy, trace: Trace, request: Request) -> Cache:
    """The cache under a policy, behind a prompt that is compressed at its end.

    Raises:
        Unknown: a budget that follows from scores, or a store that does not say what it takes.
        InvalidBudget: bytes that hold no token.
    """
    lengths = [trace.tokens] * request.batch
    policy = divided(policy, tuple(trace.forms.values()), lengths, trace.tokens)
    if policy.amount.everything and policy.store.exact:
        return _listed(full(trace, request), policy, trace, request)
    if policy.amount.kind == "auto":
        raise Unknown(f"budget {policy.amount} follows from the scores of each prompt")
    if not isinstance(policy.store, Weighs):
        raise Unknown(f"{policy.store!r} does not say how many bytes it takes")
    weighed = Bytes(policy, tuple(trace.forms.values()), trace.tokens)
    tokens = min(_tokens(policy, weighed, lengths), trace.tokens)
    others = _others(trace.layers, trace)
    held = weighed.at(tokens, lengths, _computed(trace))
    longer = _others(trace.settled, trace) + _answered(policy, weighed, tokens, request, trace)
    kept = _kept(tokens, trace)
    return Cache(policy.spec, kept, _reading(policy, trace, held), others + held, longer)


def _listed(whole: Cache, policy: Policy, trace: Trace, request: Request) -> Cache:
    """The stock cache; but layers that did not compute every token list the columns of theirs."""
    columns = sum(
        COLUMN * form.heads * count * request.batch
        for form, count in zip(trace.forms.values(), _computed(trace), strict=False)
        if count < trace.tokens
    )
    sizes = {name: getattr(whole, name) + columns for name in ("reading", "prompt", "answer")}
    return whole._replace(policy=policy.spec, kept=_kept(trace.tokens, trace), **sizes)


def _kept(tokens: int, trace: Trace) -> int:
    """So many of every layer, or all that it computed, on average."""
    each = [min(tokens, count) for count in _computed(trace)] or [tokens]
    return round(sum(each) / len(each))


def _computed(trace: Trace, more: int = 0) -> list[int]:
    """Tokens that each layer which can be compressed has of a row; none where all compute all."""
    return [trace.computed[place] + more for place in trace.forms] if trace.computed else []


def _tokens(policy: Policy, weighed: Bytes, lengths: list[int]) -> int:
    if policy.amount.kind == "bytes":
        return max(weighed.tokens(lengths), policy.least)
    rows = torch.tensor(lengths, dtype=torch.long, device="cpu")
    return int(policy.tokens(rows, 0).max())


def _reading(policy: Policy, trace: Trace, held: int) -> int:
    """All layers whole where they share a budget; else the last one, beside what others keep."""
    if policy.scope == "model":
        return trace.cache
    largest = max(trace.layers[place] for place in trace.forms)
    others = _others(trace.layers, trace)
    return others + held + largest - held // len(trace.forms)


def _answered(policy: Policy, weighed: Bytes, tokens: int, request: Request, trace: Trace) -> int:
    """Behind the answer, which stays in full precision, with the most room that layers make for it.
    Rules that compress while decoding hold every head to what it kept, or to its share.
    """
    lengths = [weighed.columns] * request.batch
    more = 0 if policy.when.decodes else request.answer
    if policy.grows:
        lengths = [weighed.columns + request.answer] * request.batch
        rows = torch.tensor(lengths, dtype=torch.long, device="cpu")
        tokens = int(policy.tokens(rows, 0).max())
    held = weighed.at(tokens, lengths, _computed(trace, lengths[0] - weighed.columns))
    if policy.when.decodes and policy.amount.kind == "bytes":  # which bound the room as well
        return held
    room = max(GROWTH, (tokens + more) // 16)
    return held + (more + room) * _pair(trace) * request.batch


def _others(sizes: Sequence[int], trace: Trace) -> int:
    """Bytes of the layers that cannot be compressed: of windows, of states."""
    return sum(size for place, size in enumerate(sizes) if place not in trace.forms)


def _pair(trace: Trace) -> int:
    """Bytes of a token's keys and values in all layers that grow."""
    return sum(form.heads * form.pair for form in trace.forms.values())


@dataclass(frozen=True)
class Engine:
    """Settings of vLLM: the share of the memory that it may use, and the tokens of a block."""

    utilisation: float = 0.9
    block: int = 32

    def __post_init__(self) -> None:
        if not 0 < self.utilisation <= 1:
            raise InvalidInput(
                f"utilisation={self.utilisation} (--gpu-memory-utilization): give a share of the "
                "memory in (0, 1]."
            )
        if self.block < 1 or self.block % 16:
            raise InvalidInput(
                f"block={self.block} (--block-size): vLLM's blocks hold a multiple of 16 tokens."
            )


@dataclass(frozen=True)
class Served:
    """Requests that fit at once under a policy, or why it is not served."""

    policy: str
    requests: int | None
    refused: str = ""


@dataclass(frozen=True)
class Pool:
    """The pool at most: vLLM measures when it starts what its own activations take, and takes that
    off, too.

    Attributes:
        bytes: of the memory that vLLM may use, what the weights leave.
        tokens: of whole prompts and answers.
        served: requests at once, whole and under policies.
    """

    bytes: int
    tokens: int
    served: tuple[Served, ...]


def pool(
    engine: Engine,
    memory: int,
    weights: int,
    trace: Trace,
    request: Request,
    policies: Sequence[Policy],
) -> Pool:
    """The pool that vLLM makes on one GPU, for requests of one row as this one.

    Raises:
        Unknown: layers with windows or states beside others, whose blocks vLLM shares out.
    """
    if len(trace.forms) != len(trace.layers) or len(set(trace.forms.values())) != 1:
        raise Unknown("layers with windows or states, or of several kinds, share vLLM's blocks")
    room = max(0, int(memory * engine.utilisation) - weights)
    (form,) = set(trace.forms.values())
    page = engine.block * form.heads * form.pair
    whole = -(-(trace.tokens + request.answer) // engine.block)
    blocks = room // (page * len(trace.forms))
    served = [Served("full", blocks // whole)]
    for policy in policies:
        try:
            served.append(_served(policy, engine, trace, room // page, whole, form.heads))
        except FoveateError as error:
            served.append(Served(policy.spec, None, str(error)))
    return Pool(room, blocks * engine.block, tuple(served))


def _served(
    policy: Policy, engine: Engine, trace: Trace, pages: int, whole: int, heads: int
) -> Served:
    """Requests at once, of which one is being read and has all of its blocks. Layers, or heads,
    that keep the same number are a tier; a block has a page for each of the largest one's.
    """
    check_policy(policy)
    rooms = [
        each[0] for each in rooms_of([policy], len(trace.forms), heads, trace.tokens, DEFAULT_TIERS)
    ]
    tiers = {room: rooms.count(room) for room in rooms}
    of_heads = len(rooms) // len(trace.forms)  # a page of a cell that is a head is smaller
    blocks = pages * of_heads // max(tiers.values())
    gaps = sum(room.gap(trace.tokens, engine.block) for room in tiers)
    reading = whole * len(tiers)
    held = reading - gaps
    return Served(policy.spec, 0 if blocks < reading else 1 + (blocks - reading) // held)
