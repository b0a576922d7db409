"""What the builders tell vLLM's: each backend's own metadata, made of a batch on CPU tensors."""

import contextlib
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from foveate.policies.amount import Amount
from foveate.vllm import vllm_api
from foveate.vllm.plans.gap import Room
from foveate.vllm.plans.plans import Offer
from foveate.vllm.plans.settings import settings_from
from foveate.vllm.scheduler.blocks import CompressedSpec
from foveate.vllm.worker.cpu import Builder as CPU
from foveate.vllm.worker.gpu import FlashBuilder, TritonBuilder
from foveate.vllm.worker.graphs import without_full_graphs
from foveate.vllm.worker.prompts import Prompts
from tests.serving.stand_ins import announced, ordering

BUILDERS = {"CPU": CPU, "FLASH_ATTN": FlashBuilder, "TRITON_ATTN": TritonBuilder}
BLOCK, COLUMNS = 32, 12
ROOM = Room.of(Amount.of("25%"), 8)
SETTINGS = settings_from({"foveate": {"policy": "snapkv:budget=25%,window=8"}})
ORDER = ordering(SETTINGS, (ROOM,), BLOCK)


@pytest.fixture(scope="module")
def config(llama):
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(
        model=llama,
        dtype="float32",
        max_model_len=512,
        max_num_seqs=8,
        block_size=BLOCK,
        enforce_eager=True,
        skip_tokenizer_init=True,
    ).create_engine_config()


def spec():
    plain = vllm_api.FullAttentionSpec(
        block_size=BLOCK, num_kv_heads=2, head_size=32, dtype=torch.float32
    )
    return CompressedSpec.of(plain, (ROOM,))


def prompts(count):
    """Of so many requests."""
    names = [f"r{i}" for i in range(count)]
    runner = SimpleNamespace(device="cpu", input_batch=SimpleNamespace(req_ids=names))
    offer = Offer(SETTINGS)
    return Prompts(offer, {"layer": 0}, runner)


def common(*rows, padding=0):
    """Of (computed, new) tokens each, and rows of no request behind them."""
    new = torch.tensor([0] + [n for _, n in rows] + [0] * padding, dtype=torch.int32)
    ends = torch.tensor([c + n for c, n in rows] + [0] * padding, dtype=torch.int32)
    starts, n = new.cumsum(0, dtype=torch.int32), len(rows) + padding
    table = torch.randperm(n * COLUMNS).view(n, COLUMNS).int() + 1
    table[len(rows) :] = 0
    return vllm_api.CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=ends,
        seq_lens_cpu_upper_bound=ends.clone(),
        num_reqs=n,
        num_actual_tokens=int(starts[-1]),
        max_query_len=int(new.max()),
        max_seq_len=int(ends.max()),
        block_table_tensor=table,
        slot_mapping=torch.arange(int(starts[-1])),
    )


@pytest.fixture(params=BUILDERS)
def builder(request, config):
    return BUILDERS[request.param](spec(), [], config, torch.device("cpu"))


def pass_of(builder, requests, batch):
    builder.prompts = prompts(len(requests))
    new = batch.query_start_loc_cpu.diff().tolist()
    told = announced({f"r{i}": (*row, new[i]) for i, row in enumerate(requests)}, ORDER)
    with builder.prompts.serving(told):
        return builder.build(0, batch)


def expected(batch, row, gap):
    """Row and length without the gap, written out."""
    table = batch.block_table_tensor[row].tolist()
    return table[gap:], int(batch.seq_lens[row]) - gap * BLOCK


def check_row(metadata, batch, row, gap):
    table, length = expected(batch, row, gap)
    blocks = -(-length // BLOCK)
    assert int(metadata.seq_lens[row]) == length
    assert metadata.block_table[row, :blocks].tolist() == table[:blocks]


def test_answers_see_their_prompt_without_the_gap(builder):
    """300 tokens of a prompt, of which 76 stay; 40, of which all do; 100, not complete yet."""
    requests = [(300, 305), (40, 44), (100, 64)]
    batch = common((305, 1), (44, 1), (64, 20))
    metadata = pass_of(builder, requests, batch)
    for row, gap in enumerate([7, 0, 0]):
        check_row(metadata, batch, row, gap)
    assert metadata.max_seq_len == int(metadata.seq_lens.max()) == 84
    assert [(row.computed, row.new, row.start) for row in metadata.foveate.rows] == [(64, 20, 2)]


def test_vllms_own_batch_is_left_alone(builder):
    batch = common((305, 1), (44, 1))
    before = batch.block_table_tensor.clone(), batch.seq_lens.clone()
    pass_of(builder, [(300, 305), (40, 44)], batch)
    assert torch.equal(batch.block_table_tensor, before[0])
    assert torch.equal(batch.seq_lens, before[1])


def test_where_everything_stays_the_metadata_is_vllms(builder, config):
    stock = type(builder).__mro__[2](spec(), [], config, torch.device("cpu"))
    batch = common((30, 1), (20, 1), (0, 10))
    mine = pass_of(builder, [(28, 30), (20, 20), (10, 0)], batch)
    theirs = stock.build(0, batch)
    for name, value in vars(theirs).items():
        # scratch memory of Triton's, and addresses in that of the CPU's
        if not name.startswith("softmax_segm") and name != "scheduler_metadata":
            same = getattr(mine, name)
            equal = torch.equal(same, value) if isinstance(value, torch.Tensor) else same == value
            assert equal, name
    assert not hasattr(mine, "foveate")


def test_a_pass_that_goes_on_after_a_prompt_reads_nothing_of_it(builder, caplog):
    """Steps end with the prompt, also where a preempted answer is read again."""
    batch = common((40, 1), (0, 310))
    metadata = pass_of(builder, [(40, 40), (300, 0)], batch)
    check_row(metadata, batch, 0, 0)
    assert metadata.block_table[1].unique().tolist() == [0]
    failures = builder.prompts.take_failed()
    assert {name: failure.reason for name, failure in failures.items()} == {"r1": "order"}
    assert "310 tokens would be read in a pass that has to end at 300" in caplog.text


def test_rows_that_fill_up_a_graph_are_of_no_request(builder):
    requests = [(300, 305), (200, 210)]
    batch = common((305, 1), (210, 1), padding=2)
    metadata = pass_of(builder, requests, batch)
    check_row(metadata, batch, 0, 7)
    check_row(metadata, batch, 1, 4)
    assert metadata.seq_lens[2:].tolist() == [0, 0]
    assert not metadata.block_table[2:].any()


def test_graphs_find_each_pass_where_they_were_captured(builder):
    """Captured on rows of no request, and replayed on answers: the kernels' arguments lie still."""
    if builder.prompts is None:
        builder.prompts = prompts(1)
    captured = builder.build_for_cudagraph_capture(common(*[(0, 1)] * 4))
    batch = common((305, 1), (210, 1), padding=2)
    pass_of(builder, [(300, 305), (200, 210)], batch)
    check_row(captured, batch, 0, 7)
    check_row(captured, batch, 1, 4)
    assert captured.seq_lens[2:].tolist() == [0, 0]


def test_warm_up_passes_compress_nothing(builder):
    builder.prompts = prompts(1)  # left in the batch by the step before
    metadata = builder.build(0, common((0, 300)))
    assert metadata.seq_lens.tolist() == [300]
    assert not hasattr(metadata, "foveate")


def test_answers_keep_no_ranges_of_images(builder):
    """vLLM's ranges of positions that see each other both ways are of whole prompts."""
    batch = common((305, 1), (0, 60))
    batch = batch.replace(mm_req_doc_ranges={0: [(5, 20)], 1: [(3, 9)]})
    told = []
    stock = type(builder).__mro__[2]
    original = stock.build
    stock.build = lambda self, prefix, batch, fast=False: (
        told.append(batch) or original(self, prefix, batch.replace(mm_req_doc_ranges=None), fast)
    )
    try:
        pass_of(builder, [(300, 305), (60, 0)], batch)
    finally:
        stock.build = original
    assert told[0].mm_req_doc_ranges == {1: [(3, 9)]}
    assert told[0].seq_lens_cpu_upper_bound.tolist() == told[0].seq_lens.tolist()


def test_groups_under_no_policy_are_vllms(config):
    plain = vllm_api.FullAttentionSpec(
        block_size=BLOCK, num_kv_heads=2, head_size=32, dtype=torch.float32
    )
    for mine in BUILDERS.values():
        builder = mine(plain, [], config, torch.device("cpu"))
        stock = mine.__mro__[2]
        assert builder.supports_update_block_table == stock.supports_update_block_table
        support = mine.get_cudagraph_support(config, plain)
        assert support == stock.get_cudagraph_support(config, plain)
        batch = common((305, 1))
        assert builder.build(0, batch).seq_lens is batch.seq_lens


def test_full_graphs_are_for_answers_alone(config, builder):
    most = vllm_api.AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
    assert type(builder).get_cudagraph_support(config, spec()).value <= most.value
    several = SimpleNamespace(kv_cache_specs={"a": object(), "b": spec()})
    assert type(builder).get_cudagraph_support(config, several).value <= most.value
    assert builder.supports_update_block_table is False


@pytest.fixture
def dispatcher(config):
    """vLLM's, with graphs for up to 8 requests: full ones for answers, piecewise ones else."""
    from vllm.config import CompilationMode
    from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher

    settings, changed = (
        config.compilation_config,
        {
            "cudagraph_mode": vllm_api.CUDAGraphMode.FULL_AND_PIECEWISE,
            "cudagraph_capture_sizes": [1, 2, 4, 8],
            "max_cudagraph_capture_size": 8,
            "mode": CompilationMode.VLLM_COMPILE,
            "splitting_ops": list(config.compilation_config._attention_ops),
        },
    )
    with contextlib.ExitStack() as stack:
        for name, value in changed.items():
            stack.enter_context(mock.patch.object(settings, name, value))
        found = CudagraphDispatcher(config)
        found.initialize_cudagraph_keys(vllm_api.CUDAGraphMode.FULL_AND_PIECEWISE, 1)
        yield found


def test_a_prompts_last_token_alone_is_no_answer(dispatcher):
    """Each request of this pass gets one token; for the second it is its prompt's last."""
    asked = {"num_tokens": 2, "uniform_decode": True}
    reading = announced({"r0": (300, 305, 1), "r1": (129, 128, 1)}, ORDER)
    answering = announced({"r0": (300, 305, 1), "r1": (129, 129, 1)}, ORDER)
    assert dispatcher.dispatch(**asked)[0] == vllm_api.CUDAGraphMode.FULL
    for told, mode in (
        (reading, vllm_api.CUDAGraphMode.PIECEWISE),
        (answering, vllm_api.CUDAGraphMode.FULL),
    ):
        plain, known = dispatcher.dispatch, prompts(2)
        runner = SimpleNamespace(cudagraph_dispatcher=dispatcher)
        without_full_graphs(runner, lambda known=known: known.reading)
        with known.serving(told):
            assert dispatcher.dispatch(**asked)[0] == mode
        assert dispatcher.dispatch(**asked)[0] == vllm_api.CUDAGraphMode.FULL  # captures, warm-ups
        dispatcher.dispatch = plain


def test_the_second_runner_takes_no_full_graph_for_a_prompts_last_token():
    """Its full graphs are for passes that are uniform; one that is not told so has none."""
    runner = SimpleNamespace(gather_batch_req_state=lambda output, dummy_run: (output, 1))
    reading = iter([True, False])
    without_full_graphs(runner, lambda: next(reading))
    assert runner.gather_batch_req_state("state", dummy_run=False) == ("state", None)
    assert runner.gather_batch_req_state("state", dummy_run=False) == ("state", 1)
