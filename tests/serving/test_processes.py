"""Engines in several processes answer what the engine inside one process answers."""

import pytest

from foveate.backends.vllm.gap import Room
from foveate.core.amount import Amount
from tests.serving.engine import check_alike, engine, prompts, serve
from tests.serving.prometheus import foveate_metrics, of_all_processes, of_this_process

POLICY = "mixkv:budget=25%,window=8"
LENGTHS = (300, 135, 97, 20)
ROOM = Room.of(Amount.of("25%"), 8)


def expected(lengths):
    """What the counters are to say of these prompts; seconds aside."""
    return {
        "prompts": len(lengths),
        "prompt_tokens": sum(lengths),
        "kept_tokens": sum(ROOM.kept(n, 32) for n in lengths),
        "freed_blocks": sum(ROOM.gap(n, 32) for n in lengths),
        "tokens_not_read": 0,
    }


@pytest.fixture(scope="module")
def single(llama):
    """The answers of an engine inside this process, and what its counters rose by."""
    before = foveate_metrics(of_this_process())
    with engine(llama, POLICY, max_num_batched_tokens=128) as llm:
        served = serve(llm, prompts(LENGTHS), tokens=12)
    after = foveate_metrics(of_this_process())
    return served, {name: value - before.get(name, 0.0) for name, value in after.items()}


def test_counters_of_one_process_say_what_was_kept_and_freed(single):
    _, rose = single
    assert rose.pop("compress_seconds") > 0
    assert rose == pytest.approx(expected(LENGTHS))


@pytest.mark.parametrize(
    ("environ", "options"),
    [
        ({"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}, {}),
        ({"VLLM_CPU_OMP_THREADS_BIND": "0|1"}, {"tensor_parallel_size": 2}),
    ],
    ids=["an engine elsewhere", "two workers"],
)
def test_other_processes_answer_alike_and_their_counters_are_seen(
    llama, single, environ, options, monkeypatch, tmp_path
):
    """Tensor parallelism, an engine in another process | work | policies that go head by head"""
    from vllm import SamplingParams

    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    given = [{"prompt_token_ids": prompt} for prompt in prompts(LENGTHS)]
    greedy = SamplingParams(temperature=0, max_tokens=12, detokenize=False, ignore_eos=True)
    with engine(llama, POLICY, max_num_batched_tokens=128, **options) as llm:
        core = getattr(llm.llm_engine.engine_core, "engine_core", None)
        assert (core is None) == (not options)
        assert core is None or core.model_executor.world_size == 2
        answers = llm.generate(given, greedy, use_tqdm=False)
        found = foveate_metrics(of_all_processes(tmp_path))
    served, _ = single
    tokens = [list(answer.outputs[0].token_ids) for answer in answers]
    check_alike(tokens, served)
    assert found.pop("compress_seconds") > 0
    assert found == pytest.approx(expected(LENGTHS))
