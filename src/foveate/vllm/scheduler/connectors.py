"""KV connectors beside policies: what a connector of vLLM's sees of each request.

A connector stores blocks by the hashes of their tokens, in the order of tokens. Requests that are
not compressed pass as in vLLM without Foveate. Compressed requests have other blocks than their
tokens say, so connectors do not store or load these, with one exception: vLLM's OffloadingConnector
stores declared contexts after compression. To it, such a request is one whose prompt is the
context's kept pairs, in blocks with names of their own, which follow from everything that
determines the pairs (``Beginnings.key``). So it moves only the bytes that are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from hashlib import sha256
from typing import Any

from foveate.vllm.plans.plans import Plan
from foveate.vllm.scheduler.beginnings import Beginnings
from foveate.vllm.scheduler.blocks import CompressedManager

CARRIER = "OffloadingConnector"
"""The connector that stores compressed contexts. It also has to know every block that a step
allocates, because it copies blocks of finished requests until they are reused.
"""


class StandIn:
    """A compressed request as the OffloadingConnector sees it: a prompt of ``tokens`` kept pairs in
    blocks with the names ``block_hashes``. It has no tokens until there is something to store.
    """

    def __init__(self, request: Any):
        self._request = request
        self.block_hashes: Sequence[Any] = ()
        self.tokens = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    @property
    def num_tokens(self) -> int:
        """Number of kept pairs per KV head, which take the place of tokens."""
        return self.tokens

    num_prompt_tokens = num_computed_tokens = num_tokens


class ConnectorView:
    """View of one connector on requests under policies; it replaces methods of the connector.

    ``plans`` are those of all requests. With ``carries`` the connector stores declared contexts.
    """

    def __init__(
        self,
        connector: Any,
        plans: Mapping[str, Plan],
        managers: Sequence[CompressedManager],
        beginnings: Beginnings,
        *,
        carries: bool,
    ):
        self._plans, self._managers, self._beginnings = plans, managers, beginnings
        self._fences = type(connector).__name__ == CARRIER
        self._carries = carries and self._fences
        self._stand_ins: dict[str, StandIn] = {}  # of compressed requests
        self._hidden: set[str] = set()  # compressed requests that the connector does not know
        self._found: dict[str, tuple[int | None, bool]] = {}
        self._ready: dict[str, tuple[list[int], ...]] = {}  # kept blocks to store, by group
        self._loaded: set[str] = set()
        # only connectors for several KV cache groups have request_finished_all_groups
        self._stock = {
            name: getattr(connector, name) for name in REPLACED if hasattr(connector, name)
        }
        for name in self._stock:
            setattr(connector, name, getattr(self, name))

    def on_new_request(self, request: Any) -> None:
        """Announce a request, or its stand-in."""
        name, plan = request.request_id, self._plans[request.request_id]
        if not plan.boundaries:
            self._stock["on_new_request"](request)
        elif self._fences:
            self._stand_ins[name] = StandIn(request)
            self._stock["on_new_request"](self._stand_ins[name])
        else:
            self._hidden.add(name)

    def finds_context(self, request: Any, plan: Plan) -> bool:
        """Return True if the connector can load all of a request's compressed context, or has to be
        queried again later.
        """
        stand_in = self._stand_ins.get(request.request_id)
        if not self._carries or stand_in is None or not plan.context:
            return False
        if not (tokens := self._kept_tokens(plan)):
            return False
        self._name(stand_in, request, plan, tokens)
        loadable, later = self._stock["get_num_new_matched_tokens"](stand_in, 0)
        stand_in.tokens = 0
        complete = loadable is None or loadable == tokens
        self._found[request.request_id] = (loadable, later) if complete else (0, False)
        return complete

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Return the tokens that the connector can load beyond those in the pool; of a compressed
        request, all kept pairs of its context or none.
        """
        if self._passes(request):
            plain = self._stock["get_num_new_matched_tokens"]
            loadable: tuple[int | None, bool] = plain(request, num_computed_tokens)
            return loadable
        return self._found.pop(request.request_id, (0, False))

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Tell the connector which blocks it loads; of a context, those of the kept pairs."""
        plain = self._stock["update_state_after_alloc"]
        if self._passes(request):
            plain(request, blocks, num_external_tokens)
        elif num_external_tokens:
            name, plan = request.request_id, self._plans[request.request_id]
            kept = tuple(
                list(blocks.blocks[manager.kv_cache_group_id])[
                    manager.gap(plan, plan.length) : plan.length // manager.block_size
                ]
                for manager in self._managers
            )
            plain(self._stand_ins[name], type(blocks)(kept), num_external_tokens)
            self._loaded.add(name)

    def store_context(self, request: Any, plan: Plan, kept: Sequence[Sequence[Any]]) -> None:
        """Store a context that a step has compressed, with the next step; ``kept`` has its blocks
        by KV cache group.
        """
        stand_in = self._stand_ins.get(request.request_id)
        if not self._carries or stand_in is None or not (tokens := self._kept_tokens(plan)):
            return
        self._name(stand_in, request, plan, tokens)
        self._ready[request.request_id] = tuple([b.block_id for b in blocks] for blocks in kept)

    def take_loaded(self, name: str) -> bool:
        """Return True once for a request whose context the connector has loaded."""
        loaded = name in self._loaded
        self._loaded.discard(name)
        return loaded

    def build_connector_meta(self, output: Any) -> Any:
        """Return the connector's metadata for a step, built from what it may see of the step."""
        visible = copy(output)
        if self._fences:
            copies = [*(output.kv_cache_block_copies or ()), *self._beginnings.pending_copies]
            visible.kv_cache_block_copies = copies or None
            self._show_contexts(visible)
        else:
            self._hide(visible)
        return self._stock["build_connector_meta"](visible)

    def request_finished(self, request: Any, block_ids: Any) -> Any:
        """Tell the connector that a request ends; compressed requests never delay their blocks."""
        return self._finish("request_finished", request, block_ids)

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        """Tell a connector for several KV cache groups that a request ends."""
        return self._finish("request_finished_all_groups", request, block_ids)

    def _finish(self, method: str, request: Any, block_ids: Any) -> Any:
        name = request.request_id
        for each in (self._found, self._loaded):
            each.pop(name, None) if isinstance(each, dict) else each.discard(name)
        if name in self._hidden:
            return False, None
        return self._stock[method](self._stand_ins.pop(name, request), block_ids)

    def _passes(self, request: Any) -> bool:
        name = request.request_id
        return name not in self._stand_ins and name not in self._hidden

    def _kept_tokens(self, plan: Plan) -> int:
        """Return the kept pairs of a context per KV head; 0 if KV cache groups keep different
        numbers, because a stand-in has one length.
        """
        kept = {
            plan.length - manager.gap(plan, plan.length) * manager.block_size
            for manager in self._managers
        }
        return kept.pop() if len(kept) == 1 else 0

    def _name(self, stand_in: StandIn, request: Any, plan: Plan, tokens: int) -> None:
        key = self._beginnings.key(request, plan, plan.length)
        size = self._beginnings.hash_block_size
        names = [sha256(key + str(i).encode()).digest() for i in range(tokens // size)]
        stand_in.block_hashes, stand_in.tokens = names, tokens

    def _show_contexts(self, visible: Any) -> None:
        """Add the contexts that are ready to a step, each as a request that begins again with its
        kept blocks.
        """
        for name in visible.preempted_req_ids or ():
            if self._ready.pop(name, None):  # its blocks are free, and may be another's by now
                self._stand_ins[name].tokens = 0
        if not self._ready:
            return
        cached = copy(visible.scheduled_cached_reqs)
        cached.req_ids = [*cached.req_ids, *self._ready]
        cached.new_block_ids = [*cached.new_block_ids, *self._ready.values()]
        cached.resumed_req_ids = cached.resumed_req_ids | self._ready.keys()
        visible.scheduled_cached_reqs = cached
        visible.num_scheduled_tokens = dict.fromkeys(self._ready, 0) | visible.num_scheduled_tokens
        self._ready = {}

    def _hide(self, visible: Any) -> None:
        """Remove the hidden requests from a step."""
        visible.scheduled_new_reqs = [
            new for new in visible.scheduled_new_reqs if new.req_id not in self._hidden
        ]
        cached = visible.scheduled_cached_reqs
        seen = [i for i, name in enumerate(cached.req_ids) if name not in self._hidden]
        columns = ("req_ids", "new_block_ids", "num_computed_tokens", "num_output_tokens")
        changed = {name: [getattr(cached, name)[i] for i in seen] for name in columns}
        if cached.new_token_ids:
            changed["new_token_ids"] = [cached.new_token_ids[i] for i in seen]
        visible.scheduled_cached_reqs = replace(
            cached, resumed_req_ids=cached.resumed_req_ids - self._hidden, **changed
        )
        new = {n: t for n, t in visible.num_scheduled_tokens.items() if n not in self._hidden}
        visible.num_scheduled_tokens, visible.total_num_scheduled_tokens = new, sum(new.values())
        self._hidden -= visible.finished_req_ids


REPLACED: tuple[str, ...] = (
    "on_new_request",
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "build_connector_meta",
    "request_finished",
    "request_finished_all_groups",
)
"""Methods of a connector that name requests."""
