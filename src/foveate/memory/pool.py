"""vLLM's pool of KV cache blocks: how many tokens it holds, and how many requests at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foveate.errors import FoveateError, InvalidInput
from foveate.memory.request import Request, Unknown
from foveate.memory.trace import Trace
from foveate.policies.policy import Policy
from foveate.vllm.plans.settings import check_policy
from foveate.vllm.plans.tiers import MOST, rooms_of


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
    rooms = [each[0] for each in rooms_of([policy], len(trace.forms), heads, trace.tokens, MOST)]
    tiers = {room: rooms.count(room) for room in rooms}
    of_heads = len(rooms) // len(trace.forms)  # a page of a cell that is a head is smaller
    blocks = pages * of_heads // max(tiers.values())
    gaps = sum(room.gap(trace.tokens, engine.block) for room in tiers)
    reading = whole * len(tiers)
    held = reading - gaps
    return Served(policy.spec, 0 if blocks < reading else 1 + (blocks - reading) // held)
