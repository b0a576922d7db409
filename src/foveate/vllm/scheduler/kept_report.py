"""Tokens and bytes kept of a prompt, in the response to its request.

vLLM's responses have one field that a scheduler can fill, ``kv_transfer_params``. It belongs to KV
connectors, and is empty without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from foveate.vllm.plans.plans import Plan

FIELD = "foveate"


class KeptReport(NamedTuple):
    """Cells (layers, or their KV heads) of each compressed KV cache group, by its number, and the
    bytes that one token takes in them. No bytes if the scheduler does not know them all: they are
    divided among workers, or there are other groups.
    """

    cells: Mapping[int, int]
    token_bytes: Mapping[int, int]

    @classmethod
    def of(cls, config: Any, compressed: set[int], workers: int) -> KeptReport:
        """Return the report of an engine with so many ``workers``. ``config`` is vLLM's
        ``KVCacheConfig``, and ``compressed`` are the numbers of its compressed groups.
        """
        groups = {number: config.kv_cache_groups[number] for number in compressed}
        cells = {number: len(group.layer_names) for number, group in groups.items()}
        complete = workers == 1 and len(groups) == len(config.kv_cache_groups)
        specs = {number: group.kv_cache_spec for number, group in groups.items() if complete}
        sizes = {number: spec.page_size_bytes // spec.block_size for number, spec in specs.items()}
        return cls(cells, {number: cells[number] * size for number, size in sizes.items()})

    def add(self, freed: Any, plan: Plan | None) -> Any:
        """Return what vLLM's ``_free_request`` returns, with what the prompt kept where no
        connector has a use for that field.
        """
        transfer, *others = freed
        if plan is None or transfer is not None:
            return freed
        return {FIELD: self._numbers(plan)}, *others

    def _numbers(self, plan: Plan) -> dict[str, float]:
        numbers = {"kept_tokens": plan.kept(self.cells)}
        if total := sum(self.token_bytes.values()):
            numbers["kv_bytes"] = round(plan.kept(self.token_bytes) * total)
            numbers["kv_bytes_full"] = plan.prompt * total
        return numbers
