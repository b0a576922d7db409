"""What is relied on of each name of vLLM that is used: a new version of vLLM fails here first."""

import ast
import dataclasses
import importlib
import inspect
import re
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from foveate.errors import UnsupportedEngine
from foveate.policies.amount import Amount
from foveate.vllm import vllm_api
from foveate.vllm.internals import PRIVATE
from foveate.vllm.plans.gap import Room
from foveate.vllm.scheduler.blocks import CompressedManager, CompressedSpec, compressible
from foveate.vllm.startup import draining, failure_messages, registration
from foveate.vllm.startup.activation import UNSET

ROOM = Room.of(Amount.of("20%"), 1)


def parameters(function):
    return list(inspect.signature(function).parameters)


def plain_spec(**changes):
    return vllm_api.FullAttentionSpec(
        **{"block_size": 32, "num_kv_heads": 2, "head_size": 32, "dtype": torch.float32} | changes
    )


def test_only_the_shim_imports_vllm():
    folder = Path(vllm_api.__file__).parent
    for file in folder.rglob("*.py"):
        names = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add(node.module or "")
        ours = any(name.split(".")[0] == "vllm" for name in names)
        assert ours == (file.name == "vllm_api.py"), file.name


def test_private_names_are_all_listed_and_all_there():
    for path, names in PRIVATE.items():
        module, kind = path.split(":")
        found = getattr(importlib.import_module(module), kind)
        sources = {inspect.getmodule(base) for base in found.__mro__ if base is not object}
        text = "".join(inspect.getsource(each) for each in sources if each.__name__ != "abc")
        for name in names:
            assigned = re.search(rf"(self|layer)\.{name}\b|register_buffer\(\"{name}\"", text)
            assert hasattr(found, name) or assigned, (path, name)
    listed = {name for names in PRIVATE.values() for name in names}
    used = set().union(*map(private_names, Path(vllm_api.__file__).parent.rglob("*.py")))
    assert used <= listed
    assert all("_scale" in name for name in listed - used)  # these are put together


def private_names(file):
    """Names with an underscore that a file looks up on what is not its own."""
    tree, own, used = ast.parse(file.read_text()), {"_replace", "_fields"}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and not calls_super(node):
            own.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            own |= {node.attr} if getattr(node.value, "id", "") == "self" else set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            used.add(node.attr)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr":
            used |= {arg.value for arg in node.args[1:2] if isinstance(arg, ast.Constant)}
    return {name for name in used - own if re.match("_[a-z]", name)}


def calls_super(function):
    """Whether a method goes on to vLLM's of the same name."""
    return f"super().{function.name}" in ast.unparse(function)


@pytest.mark.parametrize("version", ["0.32.0", "0.32.7", "0.32.0+cpu", "0.33.0"])
def test_tried_versions_are_accepted(version):
    vllm_api.check_version(version)


@pytest.mark.parametrize("version", ["0.31.9", "0.34.0", "0.34.0rc1", "1.0", "dev"])
def test_other_versions_are_refused_with_the_range(version):
    with pytest.raises(UnsupportedEngine, match=r">=0\.32,<0\.34"):
        vllm_api.check_version(version)


def test_managers_free_through_these_methods():
    asked = ["self", "request_id", "processed_computed_tokens", "num_prompt_tokens"]
    assert parameters(vllm_api.FullAttentionManager.remove_skipped_blocks) == asked
    in_range = ["self", "request_id", "first_block", "last_block"]
    assert parameters(vllm_api.FullAttentionManager._remove_blocks_in_range) == in_range


def test_steps_end_where_this_method_says():
    """It is asked for running requests and for waiting ones, and by nobody else."""
    split = parameters(vllm_api.Scheduler._mamba_block_aligned_split)
    assert (split[:3], len(split)) == (["self", "request", "num_new_tokens"], 5)
    steps = inspect.getsource(vllm_api.Scheduler.schedule)
    assert steps.count("if self.need_mamba_block_aligned_split:") == 2
    module = inspect.getsource(inspect.getmodule(vllm_api.Scheduler))
    assert module.count("self._mamba_block_aligned_split(") == 2
    assert module.count("self.need_mamba_block_aligned_split") == 4  # it is set, and read at start


def test_what_a_request_holds_at_most_is_asked_like_this():
    asked = parameters(vllm_api.FullAttentionManager.get_num_blocks_to_allocate)
    assert asked[:3] == ["self", "request_id", "num_tokens"]
    assert "apply_admission_cap" in asked
    most = vllm_api.FullAttentionSpec.max_memory_usage_bytes
    assert parameters(most) == ["self", "vllm_config"]
    assert isinstance(vllm_api.VllmConfig.max_concurrent_batches, property)


def test_specs_are_frozen_dataclasses_that_can_be_extended():
    assert dataclasses.is_dataclass(vllm_api.FullAttentionSpec)
    assert isinstance(vllm_api.FullAttentionSpec.prefix_cacheable, property)
    assert parameters(vllm_api.FullAttentionSpec.merge) == ["specs"]
    spec = CompressedSpec.of(plain_spec(), (ROOM,))
    assert spec.page_size_bytes == plain_spec().page_size_bytes
    assert spec.copy_with_new_block_size(64).rooms == (ROOM,)
    assert CompressedSpec.merge([spec, spec]) == spec
    assert spec.prefix_cacheable


def test_a_group_has_one_room():
    mine, other = (
        CompressedSpec.of(plain_spec(), (r,)) for r in (ROOM, Room.of(Amount.of("30%"), 1))
    )
    assert mine.is_uniform_with_collection({"a": mine, "b": mine})
    assert not mine.is_uniform_with_collection({"a": mine, "b": other})
    assert not mine.is_uniform_with_collection({"a": mine, "b": plain_spec()})


def test_only_full_attention_is_compressed():
    assert compressible(plain_spec())
    assert not compressible(plain_spec(sliding_window=64))
    assert not compressible(plain_spec(attention_chunk_size=64))
    assert not compressible(CompressedSpec.of(plain_spec(), (ROOM,)))


def test_registering_twice_is_registering_once_and_leaves_vllms_own():
    for _ in range(2):
        registration.register_all()
    registry = vllm_api.KVCacheSpecRegistry
    spec = CompressedSpec.of(plain_spec(), (ROOM,))
    assert registry.get_manager_class(spec) is CompressedManager
    assert registry.get_manager_class(plain_spec()) is vllm_api.FullAttentionManager
    backend = vllm_api.AttentionBackendEnum.CPU_ATTN.get_class()
    assert issubclass(backend, vllm_api.CPUAttentionBackend)
    assert backend.get_name() == "CPU_ATTN"


def test_an_engines_arguments_are_activated_once_and_have_these_fields():
    for _ in range(2):
        registration.register_all()
    arguments = vllm_api.EngineArgs
    names = {"additional_config", "kv_offloading_size", "kv_transfer_config", "scheduler_cls"}
    names |= {"spec_method", "spec_model", "speculative_config", "worker_cls"}
    names |= {"enable_dbo", "ubatch_size"}
    names |= {"disable_chunked_mm_input", "kv_cache_dtype"}
    names |= {f"{way}_context_parallel_size" for way in ("decode", "prefill")}
    assert names <= {field.name for field in dataclasses.fields(arguments)}
    assert (arguments.worker_cls, arguments.scheduler_cls) == UNSET
    assert not hasattr(arguments.create_engine_config.__wrapped__, "__wrapped__")


def test_builders_and_implementations_are_called_like_this():
    build = ["self", "common_prefix_len", "common_attn_metadata", "fast_build"]
    assert parameters(vllm_api.CPUAttentionMetadataBuilder.build) == build
    forward = parameters(vllm_api.CPUAttentionBackendImpl.forward)
    assert forward[:8] == [
        "self",
        "layer",
        "query",
        "key",
        "value",
        "kv_cache",
        "attn_metadata",
        "output",
    ]
    assert vllm_api.CPUAttentionBackend.forward_includes_kv_cache_update is False


def test_common_metadata_has_these_fields():
    names = {field.name for field in dataclasses.fields(vllm_api.CommonAttentionMetadata)}
    assert names >= {
        "query_start_loc",
        "query_start_loc_cpu",
        "seq_lens",
        "num_reqs",
        "num_actual_tokens",
        "max_query_len",
        "max_seq_len",
        "block_table_tensor",
        "slot_mapping",
    }
    assert not hasattr(vllm_api.CPUAttentionMetadata, "__slots__")


def test_pairs_are_written_through_this_operator():
    assert parameters(vllm_api.cpu_ops.cpu_attn_reshape_and_cache) == [
        "key",
        "value",
        "key_cache",
        "value_cache",
        "slot_mapping",
        "isa",
        "k_scale",
        "v_scale",
        "kv_cache_dtype",
    ]


def test_pages_read_back_what_the_operator_writes():
    from foveate.vllm.worker import cpu as pages

    vllm_api.current_platform.import_kernels()
    layer = SimpleNamespace(isa="vec", _k_scale_float=1.0, _v_scale_float=1.0)
    cache = torch.zeros(6, 2, 32, 64)
    k, v = torch.randn(2, 70, 2, 32).unbind(0)
    row = torch.tensor([4, 1, 3, 0], dtype=torch.int32)
    slots = torch.arange(70)
    pages.write(cache, layer, k, v, row.long()[slots // 32] * 32 + slots % 32)
    read_k, read_v = pages.read(cache, row, 70)
    assert torch.equal(read_k[0].transpose(0, 1), k)
    assert torch.equal(read_v[0].transpose(0, 1), v)
    assert not cache[[0, 2, 5]].any()


def test_layers_tell_what_their_codes_stand_for():
    from typing import get_args

    from vllm.config.cache import CacheConfig, CacheDType
    from vllm.model_executor.layers.attention import attention
    from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE

    from foveate.vllm.codes import TYPES

    assert set(TYPES) <= set(get_args(CacheDType))
    assert all(STR_DTYPE_TO_TORCH_DTYPE[name] == torch.uint8 for name in TYPES)
    scales = inspect.getsource(attention.set_default_quant_scales)
    for name in "qkv":
        assert f"layer._{name}_scale_float = 1.0" in scales
    assert "self.kv_cache_dtype = kv_cache_dtype" in inspect.getsource(attention.Attention)
    assert "kv_cache_dtype_skip_layers" in CacheConfig.__annotations__


def test_the_worker_is_found_by_its_name():
    package = importlib.import_module("foveate.vllm")
    assert issubclass(package.Worker, vllm_api.cpu_worker_class())
    with pytest.raises(AttributeError, match="Wroker"):
        package.Wroker  # noqa: B018
    output = {field.name for field in dataclasses.fields(vllm_api.SchedulerOutput)}
    assert output >= {"finished_req_ids", "preempted_req_ids"}


def test_schedulers_are_extended_by_these_names():
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    scheduler = vllm_api.Scheduler
    assert issubclass(vllm_api.AsyncScheduler, scheduler)
    assert parameters(scheduler.add_request) == ["self", "request"]
    assert parameters(scheduler.update_from_output)[1:] == [
        "scheduler_output",
        "model_runner_output",
    ]
    assert parameters(scheduler._free_request)[:2] == ["self", "request"]
    text = inspect.getsource(scheduler)
    assert "kv_transfer_params, ec_transfer_params = self._free_request(request)" in text
    assert "self.encoder_cache_mismatch_reqs: set[str]" in text  # ended with an error after a step
    assert "error_req_ids.update(self.encoder_cache_mismatch_reqs)" in text
    assert "self.kv_cache_manager.get_computed_blocks(request" in text
    assert parameters(KVCacheManager.get_computed_blocks)[1] == "request"
    assert callable(scheduler.schedule)
    for name in ("prefix_cache_lookup_enabled", "create_kv_cache_blocks"):
        assert callable(getattr(KVCacheManager, name))
    assert parameters(BlockPool._insert_block_hash)[1:3] == ["block_hash_with_group_id", "block"]
    assert parameters(BlockPool.get_cached_block)[1:] == ["block_hash", "kv_cache_group_ids"]


def test_steps_say_which_blocks_requests_have():
    """Added to, or for resumed requests in place of what they had."""
    from vllm.v1.core.sched.output import CachedRequestData, NewRequestData

    old, new = (
        {field.name for field in dataclasses.fields(one)}
        for one in (CachedRequestData, NewRequestData)
    )
    assert old >= {"req_ids", "resumed_req_ids", "new_block_ids", "num_computed_tokens"}
    assert new >= {"req_id", "block_ids", "num_computed_tokens"}
    assert not hasattr(vllm_api.SchedulerOutput, "__slots__")  # orders come with it
    text = inspect.getsource(vllm_api.Scheduler.schedule)
    assert "req_to_new_blocks[request_id] = self.kv_cache_manager.get_blocks(" in text


def test_images_that_were_not_sent_can_be_sent_again():
    from vllm.multimodal.cache.base import BaseMultiModalProcessorCache as Cache
    from vllm.renderers import BaseRenderer

    assert parameters(Cache.invalidate) == ["self", "mm_hash"]
    assert "mm_processor_cache" in inspect.getsource(BaseRenderer)
    if later := getattr(BaseRenderer, "queue_mm_cache_invalidations", None):
        assert parameters(later) == ["self", "mm_hashes"]
    source = inspect.getsource(inspect.getmodule(vllm_api.InputProcessor))
    assert "self.renderer = " in source


def test_managers_remember_and_share_through_these_methods():
    from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    manager = vllm_api.FullAttentionManager
    assert parameters(manager.cache_blocks)[1:3] == ["request", "num_tokens"]
    found = parameters(KVCacheCoordinator.find_longest_cache_hit)
    assert found == ["self", "block_hashes", "max_cache_hit_length"]
    source = inspect.getsource(KVCacheManager.get_computed_blocks)
    assert "self.coordinator.find_longest_cache_hit(" in source
    given = ["request_id", "new_computed_blocks"]
    assert parameters(manager.add_local_computed_blocks)[1:3] == given


def test_blocks_are_copied_before_a_step():
    """Kept pairs of a beginning, by vLLM itself, before the step writes to any block: all sources
    are read before a target is written.
    """
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator
    from vllm.v1.worker import gpu_model_runner, utils
    from vllm.v1.worker.gpu import model_runner

    assert vllm_api.KVCacheBlockCopy._fields == ("src_block_id", "dst_block_id")
    assert "kv_cache_block_copies" in vllm_api.SchedulerOutput.__annotations__
    assert "blocks[dst] = blocks[src]" in inspect.getsource(utils.copy_kv_cache_blocks_inplace)
    for update in (
        gpu_model_runner.GPUModelRunner._update_states,
        model_runner.GPUModelRunner.update_requests,
    ):
        assert "copy_kv_cache_blocks_inplace(" in inspect.getsource(update)
    assert parameters(BlockPool.get_new_blocks)[:2] == ["self", "num_blocks"]
    assert parameters(BlockPool.touch)[:2] == ["self", "blocks"]
    assert parameters(BlockPool.free_blocks)[:2] == ["self", "ordered_blocks"]
    inserted = parameters(BlockPool._insert_block_hash)
    assert inserted[1:] == ["block_hash_with_group_id", "block", "num_tokens"]
    manager, request = vllm_api.FullAttentionManager, ["self", "request_id"]
    tokens = ["num_tokens", "new_computed_blocks"]
    assert parameters(manager.get_num_blocks_to_allocate)[:4] == [*request, *tokens]
    assert "apply_admission_cap=apply" in inspect.getsource(
        KVCacheCoordinator.get_num_blocks_to_allocate
    )


def test_requests_come_in_through_this_method():
    plain = inspect.unwrap(vllm_api.InputProcessor.process_inputs)
    assert {"request_id", "prompt", "params", "resumable"} <= set(
        inspect.signature(plain).parameters
    )
    from vllm.v1.engine import EngineCoreRequest

    fields = {"prompt_token_ids", "sampling_params", "resumable"}
    assert fields <= set(EngineCoreRequest.__struct_fields__)


def test_the_second_runner_is_read_by_these_names():
    from vllm.v1.worker.gpu import cudagraph_utils, model_runner, states

    fields = {field.name for field in dataclasses.fields(vllm_api.CommonAttentionMetadata)}
    assert "req_idx" in fields
    assert "self.index_to_req_id" in inspect.getsource(states.RequestState)
    text = inspect.getsource(model_runner.GPUModelRunner)
    for name in ("self.req_states", "self.attn_groups", "self.cudagraph_manager"):
        assert name in text
    dispatch = parameters(cudagraph_utils.CudaGraphManager.dispatch)
    assert dispatch[1:4] == ["num_reqs", "num_tokens", "uniform_token_count"]
    assert "desc.uniform_token_count == uniform_token_count" in inspect.getsource(
        cudagraph_utils._is_compatible
    )
    assert inspect.isabstract(vllm_api.AsyncModelRunnerOutput)
    assert callable(vllm_api.cpu_worker_class().sample_tokens)


def test_what_explains_a_failed_request_is_there():
    from vllm.v1.engine import EngineCoreOutput

    module, name = failure_messages.SERVING
    serving = getattr(importlib.import_module(module), name)
    assert parameters(serving._raise_if_error) == ["self", "finish_reason", "request_id"]
    with pytest.raises(vllm_api.GenerationError):
        serving._raise_if_error(None, "error", "0")
    assert "stop_reason" in EngineCoreOutput.__annotations__
    new_output = ["self", "token_ids", "finish_reason", "stop_reason"]
    assert parameters(vllm_api.RequestState._new_completion_output) == new_output
    assert str(vllm_api.FinishReason.ERROR) == "error"


def test_a_server_that_shuts_down_admits_no_request():
    """Only one with Foveate's worker refuses: others are vLLM's own."""
    registration.register_all()
    front = vllm_api.AsyncLLM
    assert parameters(front.check_admission) == ["self", "n", "request_id"]
    assert parameters(front.shutdown) == ["self", "timeout"]
    assert not hasattr(front.shutdown.__wrapped__, "__wrapped__")
    from vllm.entrypoints.generate.base.serving import GenerateBaseServing
    from vllm.entrypoints.launchers import launcher

    assert "self.engine_client.check_admission(n)" in inspect.getsource(GenerateBaseServing)
    assert "partial(engine_client.shutdown, timeout=" in inspect.getsource(launcher)
    ended, calls = [], []
    shutdown = draining.wrap_shutdown(lambda engine, **options: ended.append(options))
    admit = draining.wrap_check_admission(lambda engine, n: calls.append(n))
    for name, refused in (("foveate.vllm.Worker", True), ("auto", False)):
        config = SimpleNamespace(parallel_config=SimpleNamespace(worker_cls=name))
        engine = SimpleNamespace(vllm_config=config)
        admit(engine, 1)
        shutdown(engine, timeout=3)
        with pytest.raises(vllm_api.GracefulHTTPError) if refused else nullcontext():
            admit(engine, 2)
    assert (ended, calls) == ([{"timeout": 3}] * 2, [1, 1, 2])


def test_connectors_see_requests_through_these_methods():
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.utils import yield_req_data
    from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1, SupportsHMA
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading import scheduler
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    from foveate.vllm.scheduler import connectors

    for name in connectors.REPLACED:
        found = getattr(KVConnectorBase_V1, name, None) or getattr(SupportsHMA, name)
        mine = parameters(getattr(connectors.ConnectorView, name))
        assert len(parameters(found)) == len(mine), name
    others = ("LMCacheConnectorV1", "ExampleConnector", "MultiConnector")
    for name in (connectors.CARRIER, *others):  # LMCache's own package is not installed
        kind = KVConnectorFactory._registry[name]()
        for method in filter(partial(hasattr, kind), connectors.REPLACED):
            mine = parameters(getattr(connectors.ConnectorView, method))
            assert len(parameters(getattr(kind, method))) == len(mine), (name, method)
    calls = inspect.getsource(vllm_api.Scheduler)
    for name in ("on_new_request", "update_state_after_alloc", "build_connector_meta"):
        assert f"connector.{name}(" in calls
    assert callable(KVCacheManager.get_computed_blocks_for_connector)
    # what is read of a request, and of a step
    text = inspect.getsource(scheduler)
    for read in ("block_hashes", "num_tokens", "num_prompt_tokens", "num_computed_tokens"):
        assert re.search(rf"\breq\.{read}", text), read
    assert "yield_req_data(scheduler_output)" in text
    assert "scheduler_output.kv_cache_block_copies" in text
    step = inspect.getsource(yield_req_data)
    assert all(name in step for name in ("scheduled_new_reqs", "new_block_ids", "resumed_req_ids"))


def test_stages_have_these_inputs_and_neighbours():
    from vllm.distributed.parallel_state import GroupCoordinator
    from vllm.v1.worker import gpu_model_runner

    runner = inspect.getsource(gpu_model_runner.GPUModelRunner)
    created = runner.split("if self.intermediate_tensors is None:")[1][:400]
    assert "self.model.make_empty_intermediate_tensors(" in created
    assert all(name in created for name in ("self.max_num_tokens", "self.model_config.dtype"))
    for name in ("prev_rank", "next_rank", "is_first_rank", "is_last_rank"):
        assert isinstance(getattr(GroupCoordinator, name), property)
    group = inspect.getsource(GroupCoordinator)
    assert all(f"self.{name}" in group for name in ("cpu_group", "rank_in_group", "world_size"))


def test_prompts_go_on_through_this_method():
    text = inspect.getsource(vllm_api.Scheduler)
    assert parameters(vllm_api.Scheduler._update_request_as_session)[1:] == ["session", "update"]
    assert "self._update_request_as_session(existing, update)" in text  # while it waits
    assert "self._update_request_as_session(request, update)" in text  # when its answer ends
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    begun = inspect.getsource(GPUModelRunner._update_states)
    assert "_update_streaming_request(req_id, new_req_data)" in begun  # among new requests


def test_drafters_name_their_layers_and_their_drafts_can_be_cut():
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    assert "self._draft_attn_layer_names = {" in inspect.getsource(SpecDecodeBaseProposer)
    from vllm.v1.worker import gpu_model_runner

    runner = inspect.getsource(gpu_model_runner.GPUModelRunner)
    chosen = runner.split("self.speculative_config and spec_decode_common_attn_metadata is None:")
    assert len(chosen) == 2
    assert "self.drafter.kv_cache_gid == kv_cache_gid" in chosen[1][:900]  # EAGLE's own group
    assert "else:\n                    spec_decode_common" in chosen[1][:900]  # the first one
    assert runner.count("slot_mappings=slot_mappings_by_group,") == 2
    assert runner.count("self._build_attention_metadata(") == 2
    text = inspect.getsource(vllm_api.Scheduler)
    assert "self.num_lookahead_tokens" in text
    assert "self.num_spec_tokens" in text
    running = text.split("# First, schedule the RUNNING requests.")[1]
    cut, kept = "self._mamba_block_aligned_split(", "num_scheduled_spec_tokens = ("
    assert 0 < running.index(cut) < running.index(kept)
