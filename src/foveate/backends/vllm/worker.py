"""The worker that serves with a policy."""

from __future__ import annotations

from typing import Any

from foveate.backends.vllm.attention import Rewriting
from foveate.backends.vllm.blocks import CompressedSpec, check_specs, compressible
from foveate.backends.vllm.graphs import without_full_graphs
from foveate.backends.vllm.metrics import Group, Metrics, completed, seen_at
from foveate.backends.vllm.parallel import check_parallel
from foveate.backends.vllm.platforms import served
from foveate.backends.vllm.prompts import Prompts
from foveate.backends.vllm.registration import register_all
from foveate.backends.vllm.settings import (
    check_engine,
    check_layers,
    check_profiles,
    settings_from,
)
from foveate.backends.vllm.support import check_attention, check_model, check_new
from foveate.backends.vllm.tiers import rooms_of
from foveate.backends.vllm.vllm_api import (
    KVCacheConfig,
    KVCacheSpec,
    SchedulerOutput,
    VllmConfig,
    init_logger,
)
from foveate.errors import UnsupportedEngine
from foveate.stages.budget import Uniform

logger = init_logger("vllm.foveate")  # vLLM prints the loggers below its own name


class Serving:
    """Before one of vLLM's workers: a policy from its configuration.

    Raises, when made:
        InvalidParameter: no policy is given.
        UnsupportedPolicy, InvalidBudget: one that cannot be served.
        UnsupportedEngine: a setting that compressed blocks cannot be combined with.
    """

    vllm_config: VllmConfig
    model_runner: Any
    is_driver_worker: bool

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any):
        self.policy, self.most_tiers = settings_from(vllm_config.additional_config)
        self.ordinals: dict[str, int] = {}
        self.prompts: Prompts | None = None
        self.metrics: Metrics | None = None
        check_engine(vllm_config)
        check_model(vllm_config.model_config)
        check_parallel(
            self.policy,
            vllm_config.parallel_config.tensor_parallel_size,
            vllm_config.model_config.get_total_num_kv_heads(),
        )
        register_all()
        super().__init__(vllm_config, *args, **kwargs)  # type: ignore[call-arg]

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        """vLLM's, with layers of full attention put under the policy."""
        specs: dict[str, KVCacheSpec] = super().get_kv_cache_spec()  # type: ignore[misc]
        names = [name for name, spec in specs.items() if compressible(spec)]
        config = self.vllm_config
        check_layers(
            compressed=names,
            others=[name for name in specs if name not in names],
            sharing=list(self.model_runner.shared_kv_cache_layers),
            prefix_caching=bool(config.cache_config.enable_prefix_caching),
            tiers=not isinstance(self.policy.budget, Uniform),
            hybrid=not config.scheduler_config.disable_hybrid_kv_cache_manager,
        )
        layers = self.vllm_config.compilation_config.static_forward_context
        check_attention({name: layers[name] for name in names})
        check_specs({name: specs[name] for name in names})
        check_profiles(self.policy, config.model_config.model, len(names))
        self.ordinals = {name: ordinal for ordinal, name in enumerate(names)}
        rooms = rooms_of(
            self.policy, len(names), config.model_config.max_model_len, self.most_tiers
        )
        return specs | {
            name: CompressedSpec.of(specs[name], room)
            for name, room in zip(names, rooms, strict=True)
        }

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Makes the caches, and tells the builders of compressed groups about the prompts."""
        super().initialize_from_config(kv_cache_config)  # type: ignore[misc]
        block = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        prompts = Prompts(self.policy, self.ordinals, self.model_runner)
        self.prompts = prompts
        without_full_graphs(self.model_runner.cudagraph_dispatcher, lambda: prompts.reading)
        for group in (g for groups in self.model_runner.attn_groups for g in groups):
            if isinstance(group.kv_cache_spec, CompressedSpec):
                for builder in group.metadata_builders:
                    self._attach(builder, group.kv_cache_spec.block_size)
        if self.is_driver_worker:  # of several in tensor parallelism, one
            self._announce(kv_cache_config, block)

    def _announce(self, kv_cache_config: KVCacheConfig, block: int) -> None:
        """The counters, and the one line of the log."""
        groups = [
            Group(group.kv_cache_spec.room, len(group.layer_names))
            for group in kv_cache_config.kv_cache_groups
            if isinstance(group.kv_cache_spec, CompressedSpec)
        ]
        config = self.vllm_config
        engine = config.parallel_config.data_parallel_index
        self.metrics = Metrics(config.model_config.served_model_name, engine, groups, block)
        logger.info(
            "Foveate compresses the prompts of %d layers (KV cache groups of %s): %s, in blocks of "
            "%d tokens; %s.",
            len(self.ordinals),
            ", ".join(str(group.layers) for group in groups),
            self.policy,
            block,
            seen_at(),
        )

    def _attach(self, builder: Any, block: int) -> None:
        if not isinstance(builder, Rewriting) or builder.block_size != block:
            raise UnsupportedEngine(
                f"vLLM attends with {type(builder).__name__} in blocks of "
                f"{getattr(builder, 'block_size', '?')} where its pool has blocks of {block}; "
                f"Foveate's worker needs blocks of one size and one of the backends "
                f"{', '.join(served().backends)} (--attention-backend)."
            )
        builder.check_layout()
        builder.prompts = self.prompts

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        """One step. Requests that ended, or were preempted and begin anew, are forgotten first."""
        if self.prompts is None:
            return super().execute_model(scheduler_output)  # type: ignore[misc]
        new = {request.req_id for request in scheduler_output.scheduled_new_reqs}
        check_new(new, self.model_runner.requests)
        self.prompts.forget(scheduler_output.finished_req_ids)
        self.prompts.forget(scheduler_output.preempted_req_ids or ())
        with self.prompts.serving():
            result = super().execute_model(scheduler_output)  # type: ignore[misc]
        if self.metrics is not None:
            lengths = completed(scheduler_output, self.model_runner.requests)
            self.metrics.count(lengths, self.prompts.take_seconds())
        return result


class FoveateWorker(Serving, served().worker()):  # type: ignore[misc]
    """The worker of vLLM's platform here, with a policy."""
