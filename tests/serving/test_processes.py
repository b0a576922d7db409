"""Engines in several processes answer what the engine inside one process answers."""

import pytest
import torch

from foveate.policies.amount import Amount
from foveate.vllm.plans.gap import Room
from tests.answers import certain
from tests.serving.engine import by_token, check_alike, engine, greedy, prompts, serve
from tests.serving.prometheus import foveate_metrics, of_all_processes, of_this_process
from tests.serving.test_options import adapter
from tests.serving.test_sessions import Session

POLICY = "mixkv:budget=25%,window=8"
AGAIN = "snapkv:budget=128,window=8,when=over_budget(every=64,reading=true)"
LENGTHS = (300, 135, 97, 20)
SETTINGS = {
    "policies": [AGAIN],
    "max_num_batched_tokens": 48,  # passes end before boundaries
    "enable_prefix_caching": True,
}
ANSWERS = {POLICY: 12, AGAIN: 80}  # of which the second are compressed on their way
ROOM = Room.of(Amount.of("25%"), 8)


def expected(lengths):
    """What the counters are to say of these prompts; seconds aside."""
    return {
        "prompts": len(lengths),
        "prompt_tokens": sum(lengths),
        "kept_tokens": sum(ROOM.kept(n, 32) for n in lengths),
        "freed_blocks": sum(ROOM.gap(n, 32) for n in lengths),
        "tokens_not_read": 0,
        "failed_requests": 0,
    }


@pytest.fixture(scope="module")
def single(llama):
    """The answers of an engine inside this process under both policies, and what its counters rose
    by under the first.
    """
    before = foveate_metrics(of_this_process())
    with engine(llama, POLICY, **SETTINGS) as llm:
        served = {POLICY: serve(llm, prompts(LENGTHS), ANSWERS[POLICY])}
        after = foveate_metrics(of_this_process())
        chosen = [{"foveate_policy": AGAIN}] * len(LENGTHS)
        served[AGAIN] = serve(llm, prompts(LENGTHS), ANSWERS[AGAIN], asked=chosen)
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
        ({"VLLM_CPU_OMP_THREADS_BIND": "0|1"}, {"pipeline_parallel_size": 2}),
    ],
    ids=["an engine elsewhere", "two workers", "two stages"],
)
def test_other_processes_answer_alike_and_their_counters_are_seen(
    llama, single, environ, options, monkeypatch, tmp_path, capfd
):
    """Tensor and pipeline parallelism, an engine in another process | work | policies that go head
    by head, also those that compress again
    """
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    with engine(llama, POLICY, **SETTINGS, **options) as llm:
        core = getattr(llm.llm_engine.engine_core, "engine_core", None)
        assert (core is None) == (not options)
        assert core is None or core.model_executor.world_size == 2
        answers = generated(llm, POLICY)
        found = foveate_metrics(of_all_processes(tmp_path))
        again, warm = generated(llm, AGAIN), generated(llm, AGAIN)
    served, _ = single
    assert [len(answer) for answer in again] == [ANSWERS[AGAIN]] * len(LENGTHS)
    check_alike(answers, served[POLICY])
    check_alike(again, served[AGAIN])
    check_alike(warm, served[AGAIN])
    assert "WorkerProc hit an exception" not in capfd.readouterr().out  # vLLM may go on after it
    assert found.pop("compress_seconds") > 0
    assert found == pytest.approx(expected(LENGTHS))


def generated(llm, policy):
    """The tokens answered under one of the engine's policies."""
    given = [{"prompt_token_ids": prompt} for prompt in prompts(LENGTHS)]
    sampling = greedy(ANSWERS[policy], {"foveate_policy": policy})
    answers = llm.generate(given, sampling, use_tqdm=False)
    return [list(answer.outputs[0].token_ids) for answer in answers]


PARTS = prompts([150, 70, 40], seed=3)


def with_adapter_and_in_parts(llm, folder):
    """Answers to a prompt under an adapter, and to each part of a prompt that goes on."""
    from vllm.lora.request import LoRARequest

    sampling = greedy(12, logprobs=-1)
    given = {"prompt_token_ids": prompts([200])[0]}
    mine = LoRARequest("mine", 1, str(folder))
    (output,) = llm.generate([given], sampling, use_tqdm=False, lora_request=mine)
    (answer,) = output.outputs
    adapted = list(answer.token_ids), torch.tensor([by_token(row) for row in answer.logprobs])
    session = Session(llm, "session")
    return [adapted, *(session.say(part, 12) for part in PARTS)]


@pytest.mark.slow  # three processes are started
def test_two_stages_serve_adapters_and_prompts_that_go_on(llama, monkeypatch, tmp_path, capfd):
    adapter(tmp_path)
    options = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}
    with engine(llama, POLICY, **options) as llm:
        single = with_adapter_and_in_parts(llm, tmp_path)
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    with engine(llama, POLICY, pipeline_parallel_size=2, **options) as llm:
        stages = with_adapter_and_in_parts(llm, tmp_path)
    assert "WorkerProc hit an exception" not in capfd.readouterr().out
    for (tokens, _), (expected, logprobs) in zip(stages, single, strict=True):
        sure = certain(logprobs, 2e-3)
        assert tokens[:sure] == expected[:sure]
        assert sure > 6
