"""Size of the KV cache under a policy, from lengths alone, with the library's own arithmetic; and
the capacity of vLLM's block pool in tokens and requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from foveate.cache.pairs.dense import GROWTH
from foveate.cache.pairs.pair_sizes import COLUMN
from foveate.compression.budget_division import divided
from foveate.compression.byte_budget import Bytes
from foveate.errors import FoveateError, InvalidInput
from foveate.memory.request import Request, Unknown
from foveate.memory.trace import Cache, Trace
from foveate.policies.policy import Policy
from foveate.policies.protocols import Weighs
from foveate.vllm.plans.settings import check_policy
from foveate.vllm.plans.tiers import DEFAULT_TIERS, rooms_of


def full(trace: Trace, request: Request) -> Cache:
    """Return the size of the stock cache. Layers with windows or states do not grow with the
    answer; those with windows shrink after the prompt.
    """
    settled = trace.cache - _others(trace.layers, trace) + _others(trace.settled, trace)
    rest = settled + request.answer * _pair(trace) * request.batch
    return Cache("full", trace.tokens, trace.cache, trace.cache, rest)


def under(policy: Policy, trace: Trace, request: Request) -> Cache:
    """Return the size of the cache under a policy that compresses the prompt at its end.

    Raises:
        Unknown: a budget that follows from scores, or a store of unknown size.
        InvalidBudget: a budget in bytes too small for one token.
    """
    lengths = [trace.tokens] * request.batch
    policy = divided(policy, tuple(trace.forms.values()), lengths, trace.tokens)
    if policy.amount.everything and policy.store.exact:
        return _with_columns(full(trace, request), policy, trace, request)
    if policy.amount.kind == "auto":
        raise Unknown(f"budget {policy.amount} follows from the scores of each prompt")
    if not isinstance(policy.store, Weighs):
        raise Unknown(f"{policy.store!r} does not say how many bytes it takes")
    weighed = Bytes(policy, tuple(trace.forms.values()), trace.tokens)
    tokens = min(_tokens(policy, weighed, lengths), trace.tokens)
    others = _others(trace.layers, trace)
    stored = weighed.at(tokens, lengths, _computed(trace))
    longer = _others(trace.settled, trace) + _answered(policy, weighed, tokens, request, trace)
    kept = _kept(tokens, trace)
    return Cache(policy.spec, kept, _reading(policy, trace, stored), others + stored, longer)


def _with_columns(stock: Cache, policy: Policy, trace: Trace, request: Request) -> Cache:
    """Add the column lists of layers that did not compute every token to the stock cache."""
    columns = sum(
        COLUMN * form.heads * count * request.batch
        for form, count in zip(trace.forms.values(), _computed(trace), strict=False)
        if count < trace.tokens
    )
    sizes = {name: getattr(stock, name) + columns for name in ("reading", "prompt", "answer")}
    return stock._replace(policy=policy.spec, kept=_kept(trace.tokens, trace), **sizes)


def _kept(tokens: int, trace: Trace) -> int:
    """Return the mean over layers of the kept tokens; a layer keeps no more than it computed."""
    counts = [min(tokens, count) for count in _computed(trace)] or [tokens]
    return round(sum(counts) / len(counts))


def _computed(trace: Trace, more: int = 0) -> list[int]:
    """Return the tokens per row that compressible layers computed; empty if all computed all."""
    return [trace.computed[index] + more for index in trace.forms] if trace.computed else []


def _tokens(policy: Policy, weighed: Bytes, lengths: list[int]) -> int:
    if policy.amount.kind == "bytes":
        return max(weighed.tokens(lengths), policy.least)
    rows = torch.tensor(lengths, dtype=torch.long, device="cpu")
    return int(policy.tokens(rows, 0).max())


def _reading(policy: Policy, trace: Trace, stored: int) -> int:
    """Return the peak of the cache while the prompt is read: all layers uncompressed if they share
    one budget, else the last layer uncompressed beside the others' kept pairs.
    """
    if policy.scope == "model":
        return trace.cache
    largest = max(trace.layers[index] for index in trace.forms)
    others = _others(trace.layers, trace)
    return others + stored + largest - stored // len(trace.forms)


def _answered(policy: Policy, weighed: Bytes, tokens: int, request: Request, trace: Trace) -> int:
    """Return the bytes of compressible layers after the answer, which is stored in full precision,
    including the largest spare room that layers allocate. Policies that compress while decoding
    keep every head at its kept count, or at its share.
    """
    lengths = [weighed.columns] * request.batch
    more = 0 if policy.when.decodes else request.answer
    if policy.grows:
        lengths = [weighed.columns + request.answer] * request.batch
        rows = torch.tensor(lengths, dtype=torch.long, device="cpu")
        tokens = int(policy.tokens(rows, 0).max())
    stored = weighed.at(tokens, lengths, _computed(trace, lengths[0] - weighed.columns))
    if policy.when.decodes and policy.amount.kind == "bytes":  # budgets in bytes include the room
        return stored
    room = max(GROWTH, (tokens + more) // 16)  # as DensePairs grow
    return stored + (more + room) * _pair(trace) * request.batch


def _others(sizes: Sequence[int], trace: Trace) -> int:
    """Return the bytes of layers that cannot be compressed: those with windows or states."""
    return sum(size for index, size in enumerate(sizes) if index not in trace.forms)


def _pair(trace: Trace) -> int:
    """Return the bytes of one token's keys and values in all layers that grow."""
    return sum(form.heads * form.pair for form in trace.forms.values())


@dataclass(frozen=True)
class Engine:
    """Settings of vLLM: the share of memory that it may use, and the tokens of a block."""

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
    """Requests that fit at once under a policy, or the reason why it cannot be served."""

    policy: str
    requests: int | None
    refused: str = ""


@dataclass(frozen=True)
class Pool:
    """Upper bound of vLLM's block pool: at start vLLM also subtracts its own activations, which it
    measures.

    Attributes:
        bytes: memory that vLLM may use, minus the weights.
        tokens: uncompressed tokens of prompts and answers that fit.
        served: requests that fit at once, uncompressed and under each policy.
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
    """Return vLLM's pool on one GPU, for requests of one row like this one.

    Raises:
        Unknown: layers of several kinds, between which vLLM divides the blocks.
    """
    if len(trace.forms) != len(trace.layers) or len(set(trace.forms.values())) != 1:
        raise Unknown("layers with windows or states, or of several kinds, share vLLM's blocks")
    room = max(0, int(memory * engine.utilisation) - weights)
    (form,) = set(trace.forms.values())
    page = engine.block * form.heads * form.pair
    blocks_per_request = -(-(trace.tokens + request.answer) // engine.block)
    blocks = room // (page * len(trace.forms))
    served = [Served("full", blocks // blocks_per_request)]
    for policy in policies:
        try:
            served.append(
                _served(policy, engine, trace, room // page, blocks_per_request, form.heads)
            )
        except FoveateError as error:
            served.append(Served(policy.spec, None, str(error)))
    return Pool(room, blocks * engine.block, tuple(served))


def _served(
    policy: Policy, engine: Engine, trace: Trace, pages: int, blocks_per_request: int, heads: int
) -> Served:
    """Return the number of requests at once, one of them being read with all of its blocks.

    Layers, or heads, that keep the same number form a tier; a block has a page for each cell of the
    largest tier.
    """
    check_policy(policy)
    rooms = [
        each[0] for each in rooms_of([policy], len(trace.forms), heads, trace.tokens, DEFAULT_TIERS)
    ]
    tiers = {room: rooms.count(room) for room in rooms}
    # cells that are heads have smaller pages, and so more of them
    cells_per_layer = len(rooms) // len(trace.forms)
    blocks = pages * cells_per_layer // max(tiers.values())
    gaps = sum(room.gap(trace.tokens, engine.block) for room in tiers)
    reading = blocks_per_request * len(tiers)
    kept_blocks = reading - gaps
    return Served(policy.spec, 0 if blocks < reading else 1 + (blocks - reading) // kept_blocks)
