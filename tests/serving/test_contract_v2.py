"""What is relied on of vLLM's second model runner, and what it does with it: read and called here
without an engine, on 0.32 and 0.33 alike. A new version of vLLM fails here first.
"""

import dataclasses
import inspect
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

from foveate.vllm import vllm_api
from foveate.vllm.plans.failures import Reason, RequestFailure
from foveate.vllm.worker.worker import Failing

MODE = vllm_api.CUDAGraphMode


def parameters(function):
    return list(inspect.signature(function).parameters)


def text(thing):
    """The source, in one line: where it breaks does not count."""
    return " ".join(inspect.getsource(thing).split())


def in_order(source, *parts):
    """Each part stands after the one before it."""
    places = [source.index(part) for part in parts]
    assert places == sorted(places), parts


@pytest.fixture(scope="module")
def runner():
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    return GPUModelRunner


# Which requests a pass has.


def test_the_runner_for_cpus_is_the_one_for_gpus(runner):
    from vllm.v1.worker.cpu.model_runner import CPUModelRunner

    assert issubclass(CPUModelRunner, runner)
    assert set(vars(CPUModelRunner)) <= {"__module__", "__doc__", "warming_up_model"}


def test_slots_are_named_by_requests():
    from vllm.v1.worker.gpu.states import RequestState

    states = SimpleNamespace(index_to_req_id={1: "a"}, req_id_to_index={"a": 1}, free_indices=[])
    assert RequestState.remove_request(states, "a") == 1
    assert (states.index_to_req_id, states.free_indices) == ({}, [1])
    assert "self.index_to_req_id[req_idx] = req_id" in text(RequestState.add_request)


def test_rows_are_slots_in_the_order_of_the_batch(runner):
    """Decodes first, so not in the scheduler's order; rows that pad a graph have no slot."""
    from vllm.v1.worker.gpu.attn_utils import build_attn_metadata
    from vllm.v1.worker.gpu.model_states.default import DefaultModelState

    names = {field.name for field in dataclasses.fields(vllm_api.CommonAttentionMetadata)}
    assert "req_idx" in names
    assert "req_idx=req_idx" in text(build_attn_metadata)
    assert "req_idx=input_batch.idx_mapping_np" in text(DefaultModelState.prepare_attn)
    gathered = text(runner.gather_batch_req_state)
    in_order(gathered, "sort_batch_req_ids(", "req_id_to_index.__getitem__, req_ids")


def test_slots_are_given_before_a_pass_is_prepared(runner):
    step = text(runner.execute_model)
    in_order(
        step,
        "self.finish_requests(scheduler_output)",
        "self.add_requests(scheduler_output)",
        "self.update_requests(scheduler_output)",
        "self.gather_batch_req_state(",
        "dispatch_cg_and_sync_dp(",
        "self.prepare_inputs(",
        "self.model_state.prepare_attn(",
        "self.model(**model_inputs)",
    )
    assert "finished_req_ids.union(preempted_req_ids)" in text(runner.finish_requests)


def test_a_resumed_request_is_announced_as_a_new_one():
    scheduled = text(vllm_api.Scheduler.schedule)
    assert "scheduled_new_reqs.extend(scheduled_resumed_reqs)" in scheduled
    from vllm.v1.core.sched.output import NewRequestData

    names = {field.name for field in dataclasses.fields(NewRequestData)}
    assert names >= {"req_id", "mm_features", "sampling_params", "prefill_token_ids"}
    assert isinstance(NewRequestData.prompt_len, property)


def test_lengths_on_the_cpu_are_what_is_computed_and_scheduled(runner):
    prepared = text(runner.prepare_inputs)
    in_order(
        prepared,
        "num_computed_tokens_np = self.req_states.num_computed_tokens_np[idx_mapping_np]",
        "np.add( num_computed_tokens_np, num_scheduled_tokens_upper_bound,",
    )


def test_tables_only_grow_and_slots_follow_from_positions(runner):
    """So blocks that were freed stay in a row, and no slot of a later token moves."""
    from vllm.v1.worker.gpu import block_table

    assert "req_new_block_ids, overwrite=False" in text(runner.update_requests)
    source = inspect.getsource(block_table)
    assert (
        "block_indices = tl.where(mapping_enabled, local_positions // kv_block_size, 0)" in source
    )
    assert "slot_ids = block_numbers * kv_block_size + block_offsets" in source


# Builders of metadata.


def test_builders_are_found_and_asked_through_their_groups():
    from vllm.v1.worker.gpu.attn_utils import build_attn_metadata
    from vllm.v1.worker.utils import AttentionGroup

    names = {field.name for field in dataclasses.fields(AttentionGroup)}
    assert names >= {"kv_cache_spec", "layer_names", "metadata_builders"}
    built = []
    builder = SimpleNamespace(build=lambda *given, **more: built.append((given, more)))
    group = AttentionGroup(None, [], None, 0, metadata_builders=[builder])
    group.build_metadata("common")
    assert built == [((0, "common"), {})]
    source = text(build_attn_metadata)
    assert (
        "supports_update_block_table and isinstance( attn_group.kv_cache_spec, MambaSpec" in source
    )


def test_metadata_is_built_outside_of_a_capture():
    """So the builders' buffers are no memory of a graph's own, and a graph reads them again."""
    from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager

    in_order(
        text(CudaGraphManager.capture).split("# Capture with fresh attention state.")[1],
        "create_forward_fn(desc, warmup=False)",
        "torch.cuda.graph(",
    )


# Graphs.


def manager(mode, sizes=(1, 2, 4, 8)):
    """vLLM's, with its graphs captured."""
    from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager

    made = object.__new__(CudaGraphManager)
    config = SimpleNamespace(
        speculative_config=None, cache_config=SimpleNamespace(use_kda_recoverssm=False)
    )
    made.__dict__ |= {
        "vllm_config": config,
        "compilation_config": SimpleNamespace(
            cudagraph_capture_sizes=list(sizes), max_cudagraph_capture_size=max(sizes)
        ),
        "cudagraph_mode": mode,
        "max_num_reqs": max(sizes),
        "decode_query_len": 1,
        "varlen_decode": False,
        "ubatch_runner": None,
        "lora_capture_cases": [0],
        "_lora_dispatch_map": {},
        "_candidates": {},
        "_capture_descs": {},
        "_graphs_captured": True,
    }
    made._init_candidates()
    return made


def test_dispatch_is_asked_like_this():
    from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager

    assert parameters(CudaGraphManager.dispatch) == [
        "self",
        "num_reqs",
        "num_tokens",
        "uniform_token_count",
        "num_active_loras",
        "max_query_len",
        "num_ubatches",
    ]


@pytest.mark.parametrize(
    ("mode", "other"),
    [(MODE.FULL_AND_PIECEWISE, MODE.PIECEWISE), (MODE.FULL_DECODE_ONLY, MODE.NONE)],
)
def test_a_pass_that_is_not_uniform_has_no_full_graph(mode, other):
    graphs = manager(mode)
    for requests in (1, 3, 8):
        assert graphs.dispatch(requests, requests, 1, 0).cg_mode == MODE.FULL
        assert graphs.dispatch(requests, requests, None, 0).cg_mode == other
        assert graphs.dispatch(requests, requests, None, 0, max_query_len=1).cg_mode == other


def test_full_graphs_of_passes_that_are_not_uniform_are_ruled_out_by_builders():
    from vllm.config import CompilationConfig, CompilationMode

    single = vllm_api.AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
    for splitting, mode in ((None, MODE.FULL_AND_PIECEWISE), ([], MODE.FULL_DECODE_ONLY)):
        config = CompilationConfig(mode=CompilationMode.VLLM_COMPILE, cudagraph_mode=MODE.FULL)
        ops = config._attention_ops if splitting is None else splitting
        config.splitting_ops = list(ops)
        found = config.resolve_cudagraph_mode_and_sizes(single, "", 1, use_v2_model_runner=True)
        assert found == mode


def gathered(runner, computed, prompts):
    """What the runner finds of a pass with one new token for each request."""
    names = [str(n) for n in range(len(prompts))]
    lengths, done = np.array(prompts), np.array(computed)
    states = SimpleNamespace(
        req_id_to_index={name: n for n, name in enumerate(names)},
        prefill_len=SimpleNamespace(np=lengths),
        num_computed_prefill_tokens=np.minimum(done, lengths),
    )
    mine = SimpleNamespace(
        req_states=states,
        decode_query_len=1,
        use_pp=False,
        adaptive_verification=None,
        pcp_manager=None,
    )
    output = SimpleNamespace(
        num_scheduled_tokens=dict.fromkeys(names, 1),
        total_num_scheduled_tokens=len(names),
        scheduled_spec_decode_tokens={},
    )
    return runner.gather_batch_req_state(mine, output, False)


def test_a_prompts_last_token_alone_is_uniform_to_the_runner(runner):
    """Which is why a pass that reads a prompt has to be kept out of full graphs."""
    assert parameters(runner.gather_batch_req_state) == ["self", "scheduler_output", "dummy_run"]
    state, uniform = gathered(runner, computed=(305, 128), prompts=(300, 129))
    assert (uniform, state.has_prefill) == (1, True)
    state, uniform = gathered(runner, computed=(305, 0), prompts=(300, 1))
    assert uniform is None  # a prompt of one token
    step = text(runner.execute_model)
    assert "batch_req_state, uniform_tok_count = self.gather_batch_req_state(" in step
    assert "if batch_req_state.has_prefill:" in step  # and then no bound of its own, either
    in_order(step, "dispatch_cg_and_sync_dp( self.cudagraph_manager,", "uniform_tok_count,")


def agreed(monkeypatch, counts, reading=None):
    """What two ranks of data parallelism run: each has ``counts`` for its uniform number of tokens.
    ``reading`` is a rank whose manager never takes a full graph.
    """
    from vllm.v1.worker.gpu import dp_utils

    ranks, tokens = len(counts), (3, 5)
    graphs = [manager(MODE.FULL_AND_PIECEWISE) for _ in counts]
    if reading is not None:
        plain = graphs[reading].dispatch
        graphs[reading].dispatch = lambda n, t, _, **more: plain(n, t, None, **more)
    sent = []

    def together(tensor, group=None):
        if len(sent) < ranks:
            sent.append(tensor.clone())
        else:
            tensor.copy_(sum(sent))

    def once(rank):
        return dp_utils.dispatch_cg_and_sync_dp(
            graphs[rank], tokens[rank], tokens[rank], counts[rank], ranks, rank
        )[0]

    group = SimpleNamespace(cpu_group=None, cpu_all_reduce_=together)
    monkeypatch.setattr(dp_utils, "get_dp_group", lambda: group)
    if hasattr(dp_utils, "dist"):  # 0.32
        monkeypatch.setattr(dp_utils.dist, "all_reduce", together)
    for rank in range(ranks):
        once(rank)  # alone: what it sends is what counts
    return [once(rank) for rank in range(ranks)]


def test_ranks_agree_if_the_one_that_reads_says_that_it_is_not_uniform(monkeypatch):
    assert {one.cg_mode for one in agreed(monkeypatch, (1, 1))} == {MODE.FULL}
    found = agreed(monkeypatch, (None, 1))
    assert {one.cg_mode for one in found} == {MODE.PIECEWISE}
    assert {one.num_tokens for one in found} == {8}


def test_ranks_do_not_agree_if_a_manager_alone_passes_over_full_graphs(monkeypatch):
    """Each then runs another kind of graph in the same step: it is not for a manager to say."""
    found = agreed(monkeypatch, (1, 1), reading=0)
    assert [one.cg_mode for one in found] == [MODE.PIECEWISE, MODE.FULL]


# What steps leave to each other, and to threads.


def test_outputs_on_their_way_are_whole():
    """A request that fails has such an output; vLLM 0.33 asks one for more than 0.32."""
    assert not inspect.isabstract(Failing)

    class Plain(vllm_api.AsyncModelRunnerOutput):
        def get_output(self):
            return SimpleNamespace()

        def get_kv_connector_output(self):
            return None

    failed = {"a": RequestFailure(Reason.POOL, "the prompt needs more blocks than the pool has")}
    failing = Failing(Plain(), failed)
    assert failing.get_output().foveate_failed == failed
    assert failing.get_kv_connector_output() is None


def test_results_are_copied_by_a_stream_that_waits_for_the_passes(runner):
    from vllm.v1.worker.gpu.async_utils import AsyncOutput

    in_order(
        text(AsyncOutput.__init__), "copy_stream.wait_stream(main_stream)", "async_copy_to_np("
    )
    assert "main_stream=self.main_stream" in text(runner.sample_tokens)
    assert "torch.cuda.current_stream(self.device)" in inspect.getsource(runner)


def test_what_the_cpu_writes_for_steps_in_flight_is_not_one_buffer(runner):
    from vllm.v1.worker.gpu.buffer_utils import UvaBufferPool

    made = text(runner.__init__)
    assert "set_default_max_concurrency(vllm_config.max_concurrent_batches)" in made
    pool = object.__new__(UvaBufferPool)
    buffers = [
        SimpleNamespace(cpu=(t := torch.zeros(2)), np=t.numpy(), uva=lambda n, t=t: t[:n])
        for _ in range(2)
    ]
    pool.__dict__ |= {"max_concurrency": 2, "_curr": 0, "_uva_bufs": buffers}
    first, second = pool.copy_to_uva(np.ones(2)), pool.copy_to_uva(np.zeros(2))
    assert first.tolist() == [1, 1]
    assert first.data_ptr() != second.data_ptr()


def test_what_a_gpu_writes_for_a_step_is_one_buffer(runner):
    """Tables, lengths and starts are overwritten by the next step: its stream keeps the order. Ours
    are of the same kind.
    """
    from vllm.v1.worker.gpu.block_table import BlockTables

    assert "out = tuple(self.input_block_tables)" in text(BlockTables.gather_block_tables)
    prepared = text(runner.prepare_inputs)
    assert "query_start_loc = self.input_buffers.query_start_loc" in prepared
    assert "seq_lens = self.input_buffers.seq_lens[:num_reqs_padded]" in prepared


def test_blocks_are_freed_by_tokens_that_no_step_in_flight_holds():
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    source = text(KVCacheManager.allocate_slots)
    assert "max(0, total_computed_tokens - request.num_in_flight_tokens)" in source
    assert "num_prompt_tokens=request.num_prompt_tokens" in source


def test_a_warm_up_passes_through_the_workers_methods():
    """Its requests are made up: they are no prompts that were served."""
    from vllm.v1.worker.gpu.warmup import warmup_kernels

    names = ["model_runner", "worker_execute_model", "worker_sample_tokens"]
    assert parameters(warmup_kernels) == names
    worker = vllm_api.gpu_worker_class()
    called = "warmup_kernels( self.model_runner, self.execute_model, self.sample_tokens )"
    source = " ".join(inspect.getsource(worker).split())
    assert called in source
    assert source.index("def initialize_from_config") < source.index(called)


def test_profiling_leaves_no_manager_behind():
    """A manager that the worker has changed is the one that serves."""
    from vllm.v1.worker.gpu import cudagraph_utils

    assert "runner.cudagraph_manager = None" in inspect.getsource(cudagraph_utils)
    worker = vllm_api.gpu_worker_class()
    assert "profile_cudagraph_memory()" in text(worker.determine_available_memory)


@pytest.mark.parametrize("name", ["execute_model", "sample_tokens", "compile_or_warm_up_model"])
def test_workers_have_these_methods(name):
    for worker in (vllm_api.gpu_worker_class(), vllm_api.cpu_worker_class()):
        assert callable(getattr(worker, name))


def test_the_second_runner_is_chosen_by_its_variable():
    from vllm import envs
    from vllm.config import VllmConfig

    assert isinstance(VllmConfig.use_v2_model_runner, property)
    with mock.patch.dict("os.environ", {"VLLM_USE_V2_MODEL_RUNNER": "0"}):
        assert envs.VLLM_USE_V2_MODEL_RUNNER is False
