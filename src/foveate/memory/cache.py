"""What the KV cache takes under a policy: the library's own arithmetic, from lengths alone."""

from __future__ import annotations

from typing import NamedTuple

import torch

from foveate.core.byte_budget import Bytes
from foveate.core.dividing import divided
from foveate.core.policy import Policy
from foveate.core.protocols import Weighs
from foveate.core.storage.dense import GROWTH
from foveate.memory.inputs import Unknown
from foveate.memory.request import Request
from foveate.memory.trace import Trace


class Cache(NamedTuple):
    """A KV cache over all layers and rows, in bytes.

    Attributes:
        policy: its spec.
        kept: tokens of a row's prompt that each KV head keeps, on average.
        reading: at most, while the prompt is read.
        prompt: behind the prompt.
        answer: behind the answer.
    """

    policy: str
    kept: int
    reading: int
    prompt: int
    answer: int


def full(trace: Trace, request: Request) -> Cache:
    """The stock cache. Layers with windows and states do not grow."""
    rest = trace.cache + request.answer * _pair(trace) * request.batch
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
        return full(trace, request)._replace(policy=policy.spec)
    if policy.amount.kind == "auto":
        raise Unknown(f"budget {policy.amount} follows from the scores of each prompt")
    if not isinstance(policy.store, Weighs):
        raise Unknown(f"{policy.store!r} does not say how many bytes it takes")
    weighed = Bytes(policy, tuple(trace.forms.values()), trace.tokens)
    tokens = min(_tokens(policy, weighed, lengths), trace.tokens)
    others = trace.cache - sum(trace.layers[place] for place in trace.forms)
    held = weighed.at(tokens, lengths)
    longer = others + _answered(policy, weighed, tokens, request, _pair(trace))
    return Cache(policy.spec, tokens, _reading(policy, trace, held), others + held, longer)


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
    others = trace.cache - sum(trace.layers[place] for place in trace.forms)
    return others + held + largest - held // len(trace.forms)


def _answered(policy: Policy, weighed: Bytes, tokens: int, request: Request, pair: int) -> int:
    """Behind the answer, which stays in full precision, with the most room that layers make for it.
    Rules that compress while decoding hold every head to what it kept, or to its share.
    """
    lengths = [weighed.columns] * request.batch
    more = 0 if policy.when.decodes else request.answer
    if policy.grows:
        lengths = [weighed.columns + request.answer] * request.batch
        rows = torch.tensor(lengths, dtype=torch.long, device="cpu")
        tokens = int(policy.tokens(rows, 0).max())
    held = weighed.at(tokens, lengths)
    if policy.when.decodes and policy.amount.kind == "bytes":  # which bound the room as well
        return held
    room = max(GROWTH, (tokens + more) // 16)
    return held + (more + room) * pair * request.batch


def _pair(trace: Trace) -> int:
    """Bytes of a token's keys and values in all layers that grow."""
    return sum(form.heads * form.pair for form in trace.forms.values())
