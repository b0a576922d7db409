"""Private names of vLLM that Foveate depends on, by the class that has them.

Public names are imported in ``vllm_api``. ``tests/serving/test_contract.py`` checks, in every
supported release, that each of these exists and that Foveate uses no others. It also checks the
behaviour behind them, so that a change in a release is found by name.
"""

from __future__ import annotations

from collections.abc import Mapping

PRIVATE: Mapping[str, tuple[str, ...]] = {
    # scheduler: compressed requests end their steps at boundaries, and go on after an answer
    "vllm.v1.core.sched.scheduler:Scheduler": (
        "_mamba_block_aligned_split",
        "_update_request_as_session",
        "_free_request",
    ),
    # pool and managers: gaps become null blocks, and kept pairs get names of their own
    "vllm.v1.core.block_pool:BlockPool": ("_insert_block_hash",),
    "vllm.v1.core.single_type_kv_cache_manager:FullAttentionManager": (
        "_null_block",
        "_remove_blocks_in_range",
    ),
    "vllm.v1.kv_cache_spec_registry:KVCacheSpecRegistry": ("_ensure_registered",),
    # layers: scales of codes, and the layers of a draft model
    "vllm.model_executor.layers.attention.attention:Attention": (
        "_q_scale",
        "_k_scale",
        "_v_scale",
        "_q_scale_float",
        "_k_scale_float",
        "_v_scale_float",
    ),
    "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer": ("_draft_attn_layer_names",),
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner": ("_build_attention_metadata",),
    # connectors behind one connector
    "vllm.distributed.kv_transfer.kv_connector.v1.multi_connector:MultiConnector": ("_connectors",),
    # server: the sentence that explains a failed request
    "vllm.entrypoints.generate.base.serving:GenerateBaseServing": ("_raise_if_error",),
    "vllm.v1.engine.output_processor:RequestState": ("_new_completion_output",),
}
"""Names by ``module:class``."""
