"""Whether a model and a prompt fit into a memory, what fills it, and what to change first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from foveate.compression.composition import policy as policy_of
from foveate.defaults import DtypeName
from foveate.errors import InvalidParameter, UnsupportedModel
from foveate.memory import cache, changes
from foveate.memory.cache import Cache
from foveate.memory.changes import Change
from foveate.memory.model import Bare, bare
from foveate.memory.pool import Engine, Pool, pool
from foveate.memory.request import Request
from foveate.memory.trace import Trace, pruned, trace
from foveate.memory.unknown import Unknown
from foveate.memory.weights import Weights, weights
from foveate.policies.policy import Policy

BY_DEFAULT = "recommended:budget=20%"


@dataclass(frozen=True)
class Under:
    """The KV cache under a policy, and the peak of everything with it; or why that is unknown.
    ``prefill`` is there where the policy leaves visual tokens uncomputed.
    """

    policy: str
    cache: Cache | None
    peak: int | None
    unknown: str = ""
    prefill: PrunedPrefill | None = None


@dataclass(frozen=True)
class PrunedPrefill:
    """The decoder's activations at its peak, in bytes, and its operations as a share of those of
    the whole prompt, where some visual tokens are not computed.
    """

    activations: int
    flops: float


@dataclass(frozen=True)
class Fit:
    """What fills a memory. Bytes, over all rows; None is what cannot be known, and ``unknown`` says
    why, by the name of the part.

    Attributes:
        memory: that is there.
        weights: the model's.
        trace: peaks of tower, prefill and decoding, without the weights.
        caches: full, and under each policy.
        logits: of the prompt's last token, and of all of its tokens.
        changes: what would lower the peak, the largest saving first.
        pool: vLLM's.
    """

    model: str
    memory: int
    request: Request
    weights: Weights | None
    trace: Trace | None
    caches: tuple[Under, ...]
    logits: tuple[int, int] | None
    changes: tuple[Change, ...]
    pool: Pool | None
    unknown: dict[str, str]

    @property
    def peak(self) -> int | None:
        """The most that is held at once, with the full cache."""
        return self.caches[0].peak if self.caches else None

    @property
    def fits(self) -> bool | None:
        """Whether that is no more than the memory."""
        return None if self.peak is None else self.peak <= self.memory


def fit(
    model: str,
    request: Request,
    memory: int,
    *,
    policies: Sequence[Policy | str] = (BY_DEFAULT,),
    dtype: DtypeName = "auto",
    engine: Engine | None = None,
    trust_remote_code: bool = False,
) -> Fit:
    """Says what a model holds while it sees, reads and answers, from its configuration alone.

    The model's own code runs on tensors without numbers, and what lives is counted
    (:mod:`foveate.memory.counting`). Not counted are what libraries and drivers keep for
    themselves, and what an allocator holds back.

    Args:
        model: a directory with config.json, and preprocessor_config.json where there are images.
        request: what is asked.
        memory: bytes that are there.
        policies: to see the KV cache under.
        dtype: of weights and activations; "auto" is what config.json says.
        engine: settings of vLLM for its pool; None leaves that out.
        trust_remote_code: runs the Python code that comes with the model.

    Raises:
        ModelNotFound, UnsupportedModel, InvalidInput: as :func:`foveate.memory.model.bare`.
        FoveateError: a spec that is no policy.
    """
    chosen = [policy_of(one) if isinstance(one, str) else one for one in policies]
    made, unknown = bare(model, dtype, trust_remote_code), dict[str, str]()
    held, traced = _weights(made, unknown), _traced(made, request, unknown)
    if traced is None:
        return Fit(model, memory, request, held, None, (), None, (), None, unknown)
    under = [_under(made, policy, held, traced, request) for policy in chosen]
    usual = under or [_under(made, policy_of(BY_DEFAULT), held, traced, request)]
    peaks = {one.policy: one.peak for one in usual if one.peak is not None}
    return Fit(
        model,
        memory,
        request,
        held,
        traced,
        (_full(held, traced, request), *under),
        _logits(made, traced, request),
        changes.changes(made, request, held, traced, peaks) if held else (),
        _pool(engine, memory, held, traced, request, chosen, unknown),
        unknown,
    )


def _weights(made: Bare, unknown: dict[str, str]) -> Weights | None:
    try:
        return weights(made)
    except Unknown as error:
        unknown["weights"] = str(error)
        return None


def _traced(made: Bare, request: Request, unknown: dict[str, str]) -> Trace | None:
    try:
        return trace(made, request)
    except Unknown as error:
        unknown["tower, prefill and cache"] = str(error)
        return None


def _full(held: Weights | None, traced: Trace, request: Request) -> Under:
    whole = cache.full(traced, request)
    return Under("full", whole, None if held is None else held.bytes + traced.peak(whole))


def _under(
    made: Bare, policy: Policy, held: Weights | None, traced: Trace, request: Request
) -> Under:
    try:
        under = pruned(made, policy, traced, request)
        size = cache.under(policy, under, request)
    except (Unknown, UnsupportedModel, InvalidParameter) as error:
        return Under(policy.spec, None, None, str(error))
    peak = None if held is None else held.bytes + under.peak(size)
    prefill = None
    if under is not traced and under.flops and traced.flops:
        prefill = PrunedPrefill(under.activations, under.flops / traced.flops)
    return Under(policy.spec, size, peak, prefill=prefill)


def _logits(made: Bare, traced: Trace, request: Request) -> tuple[int, int] | None:
    last: Any = made.model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if last is None:
        return None
    one = last.weight.shape[0] * made.dtype.itemsize * request.batch
    return one, one * traced.tokens


def _pool(
    engine: Engine | None,
    memory: int,
    held: Weights | None,
    traced: Trace,
    request: Request,
    chosen: Sequence[Policy],
    unknown: dict[str, str],
) -> Pool | None:
    if engine is None or held is None:
        return None
    try:
        return pool(engine, memory, held.bytes, traced, replace(request, batch=1), chosen)
    except Unknown as error:
        unknown["vLLM's pool"] = str(error)
        return None
