"""vLLM's worker with policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foveate.errors import UnsupportedEngine
from foveate.vllm.metrics import Metrics, describe_endpoint
from foveate.vllm.plans.failures import RequestFailure
from foveate.vllm.plans.plans import Offer
from foveate.vllm.plans.settings import check_profiles, settings_from
from foveate.vllm.plans.tiers import by_head, rooms_of, shaping
from foveate.vllm.scheduler.blocks import (
    CompressedSpec,
    check_specs,
    compressible,
    has_compressed,
)
from foveate.vllm.startup.activation import check_config
from foveate.vllm.startup.registration import register_all, served
from foveate.vllm.startup.support import check_attention, check_layers
from foveate.vllm.vllm_api import (
    AsyncModelRunnerOutput,
    KVCacheConfig,
    KVCacheSpec,
    SchedulerOutput,
    VllmConfig,
    get_pp_group,
    init_logger,
)
from foveate.vllm.worker.drafter import drafter_layers, give_own_pages
from foveate.vllm.worker.graphs import without_full_graphs
from foveate.vllm.worker.heads import head_names, split
from foveate.vllm.worker.metadata import Rewriting
from foveate.vllm.worker.parallel import (
    StageFailures,
    create_stage_inputs,
    layers_of_all_stages,
    share_failures,
)
from foveate.vllm.worker.prompts import Prompts

logger = init_logger("vllm.foveate")  # vLLM prints only loggers below its own name


class Serving:
    """Mixin in front of one of vLLM's workers: reads policies from its configuration.

    Raises, when constructed:
        InvalidParameter: no policy.
        UnsupportedPolicy, InvalidBudget: a policy that cannot be served.
        UnsupportedEngine: a setting that excludes compressed blocks.
    """

    vllm_config: VllmConfig
    model_runner: Any
    is_driver_worker: bool

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any):
        self.settings = settings_from(vllm_config.additional_config)
        self.ordinals: dict[str, int] = {}
        self.depth = 0
        self._stage_failures = StageFailures()
        self.prompts: Prompts | None = None
        self.metrics: Metrics | None = None
        check_config(vllm_config, self.settings)
        register_all()
        super().__init__(vllm_config, *args, **kwargs)  # type: ignore[call-arg]

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        """Return vLLM's specs, with compressed ones for layers of full attention."""
        specs: dict[str, KVCacheSpec] = super().get_kv_cache_spec()  # type: ignore[misc]
        drafter = drafter_layers(self.model_runner)
        names = [name for name, spec in specs.items() if compressible(spec) and name not in drafter]
        self._check(names, specs)
        before, depth = layers_of_all_stages(len(names))
        self.ordinals = {name: before + i for i, name in enumerate(names)}
        policies, self.depth = self.settings.policies, depth
        heads, longest = specs[names[0]].num_kv_heads, self.vllm_config.model_config.max_model_len
        rooms = rooms_of(policies, depth, heads, longest, self.settings.tiers)
        if not by_head(policies):
            return specs | {
                name: CompressedSpec.of(specs[name], rooms[i]) for name, i in self.ordinals.items()
            }
        split(self._layers, names, heads)
        cells = [(name, head) for name in names for head in head_names(name, heads)]
        return specs | {
            head: CompressedSpec.of(specs[name], room, num_kv_heads=1)
            for (name, head), room in zip(cells, rooms, strict=True)
        }

    @property
    def _layers(self) -> dict[str, Any]:
        layers: dict[str, Any] = self.vllm_config.compilation_config.static_forward_context
        return layers

    def _check(self, names: list[str], specs: dict[str, KVCacheSpec]) -> None:
        config, policies = self.vllm_config, self.settings.policies
        check_layers(
            compressed=names,
            others=[name for name in specs if name not in names],
            sharing=[
                name
                for name, layer in self._layers.items()
                if getattr(layer, "kv_sharing_target_layer_name", None)
            ],
            tiers=shaping(policies) is not None,
            hybrid=not config.scheduler_config.disable_hybrid_kv_cache_manager,
        )
        check_attention({name: self._layers[name] for name in names}, by_head=by_head(policies))
        check_specs({name: specs[name] for name in names})
        _, depth = layers_of_all_stages(len(names))
        for policy in policies:
            check_profiles(policy, config.model_config.model, depth)

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Create the caches, and connect the builders of compressed groups to the prompts."""
        super().initialize_from_config(kv_cache_config)  # type: ignore[misc]
        create_stage_inputs(self.model_runner)
        give_own_pages(self.model_runner)
        prompts = Prompts(Offer(self.settings), self.ordinals, self.model_runner, self.depth)
        self.prompts = prompts
        without_full_graphs(self.model_runner, lambda: prompts.reading)
        for number, groups in enumerate(self.model_runner.attn_groups):
            for group in groups:
                if isinstance(group.kv_cache_spec, CompressedSpec):
                    for builder in group.metadata_builders:
                        self._attach(builder, number, group.kv_cache_spec.block_size)
        # one of the tensor-parallel workers of the stage whose results vLLM reads
        if self.is_driver_worker and get_pp_group().is_last_rank:
            self._announce(kv_cache_config)

    def _announce(self, kv_cache_config: KVCacheConfig) -> None:
        """Create the counters, and log one line about the compressed layers."""
        groups = {
            number: group
            for number, group in enumerate(kv_cache_config.kv_cache_groups)
            if has_compressed(group.kv_cache_spec)
        }
        cells = {number: len(group.layer_names) for number, group in groups.items()}
        blocks = sorted({group.kv_cache_spec.block_size for group in groups.values()})
        self.metrics = Metrics(self.vllm_config, self.settings, cells)
        logger.info(
            "Foveate compresses the prompts of %d layers (KV cache groups of %s%s): %s, in %d "
            "blocks of %s tokens; %s.",
            self.depth,
            ", ".join(map(str, cells.values())),
            " KV heads" if by_head(self.settings.policies) else "",
            " or ".join(map(str, self.settings.policies)),
            kv_cache_config.num_blocks - 1,  # without vLLM's null block
            " and ".join(map(str, blocks)),
            describe_endpoint(),
        )

    def _attach(self, builder: Any, number: int, block: int) -> None:
        if not isinstance(builder, Rewriting) or builder.block_size != block:
            raise UnsupportedEngine(
                f"vLLM attends with {type(builder).__name__} in blocks of "
                f"{getattr(builder, 'block_size', '?')} where its pool has blocks of {block}; "
                f"Foveate's worker needs blocks of one size and one of the backends "
                f"{', '.join(served().backends)} (--attention-backend)."
            )
        builder.check_layout()
        builder.prompts, builder.group = self.prompts, number
        if by_head(self.settings.policies):
            builder.attend_by_head(self._layers[next(iter(self.ordinals))].foveate_heads.group)

    def compile_or_warm_up_model(self) -> Any:
        """Warm up as vLLM does. Its second runner sends dummy requests through ``execute_model``,
        which must not be compressed or counted.
        """
        prompts, self.prompts = self.prompts, None
        try:
            return super().compile_or_warm_up_model()  # type: ignore[misc]
        finally:
            self.prompts = prompts

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        """Execute one step, and count its prompts."""
        if self.prompts is None:
            return super().execute_model(scheduler_output)  # type: ignore[misc]
        with self.prompts.serving(scheduler_output):
            result = super().execute_model(scheduler_output)  # type: ignore[misc]
            if self.prompts.reading:
                names = list(scheduler_output.num_scheduled_tokens)
                share_failures(self.prompts, names)
                self._stage_failures.pass_on(self.prompts, names)
        if self.metrics is not None:
            prompts = self.prompts
            self.metrics.count(prompts.completed, prompts.take_seconds(), prompts.not_read)
        return self._attach_failures(result)

    def sample_tokens(self, *args: Any, **options: Any) -> Any:
        """Return the step's tokens, with its failed requests as ``foveate_failed``."""
        return self._attach_failures(super().sample_tokens(*args, **options))  # type: ignore[misc]

    def _attach_failures(self, result: Any) -> Any:
        if result is None or self.prompts is None or not self.prompts.failed:
            return result
        failed = self.prompts.take_failed()
        if isinstance(result, AsyncModelRunnerOutput):
            return Failing(result, failed)
        result.foveate_failed = failed
        return result


class Failing(AsyncModelRunnerOutput):
    """Asynchronous output of a step, with its failed requests."""

    def __init__(self, output: AsyncModelRunnerOutput, failed: Mapping[str, RequestFailure]):
        self._output, self._failed = output, failed

    def get_output(self) -> Any:
        output = self._output.get_output()
        output.foveate_failed = self._failed
        return output

    def get_kv_connector_output(self) -> Any:
        """Return vLLM's output for KV connectors, or None; vLLM 0.33 calls this always."""
        return getattr(self._output, "get_kv_connector_output", lambda: None)()


class FoveateWorker(Serving, served().worker()):  # type: ignore[misc]
    """Worker of this platform, with policies."""
