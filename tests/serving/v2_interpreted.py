"""vLLM's second model runner, and Foveate in it, on a CPU in Triton's interpreter. A process of its
own, as vLLM decides on Triton when it is first imported. Prints what was answered, by run.

    python -m tests.serving.v2_interpreted MODEL sync|async RUN...

A run is a policy, or nothing for stock vLLM; or what ``answers`` takes, as JSON. Starting costs ten
seconds of a core, a run in it one or two: several in one process are cheap.
"""

import contextlib
import json
import sys
from unittest import mock

from tests.serving.triton_interpreted import interpreted

LENGTHS, TOKENS = (70, 45), 3
SIZES = {"block_size": 32, "max_model_len": 128, "num_gpu_blocks_override": 24, "max_num_seqs": 4}


def asynchronous():
    """The platform for CPUs turns asynchronous scheduling off; here it stays on."""
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config

    def on(config):
        check(config)
        config.scheduler_config.async_scheduling = True

    return mock.patch.object(CpuPlatform, "check_and_update_config", staticmethod(on))


def warming_up():
    """Workers for CPUs warm up as those for GPUs do; of sampling, what the interpreter can run."""
    from vllm import SamplingParams
    from vllm.v1.worker.cpu_worker import CPUWorker
    from vllm.v1.worker.gpu import warmup

    plain = CPUWorker.compile_or_warm_up_model

    def warm(worker):
        def sample(grammar):
            worker.sample_tokens(None)

        warmup.warmup_kernels(worker.model_runner, worker.execute_model, sample)
        mixed = warmup.run_mixed_prefill_decode_warmup
        assert mixed(worker.model_runner, worker.execute_model, sample, SIZES["max_model_len"])
        return plain(worker)

    stack = contextlib.ExitStack()
    greedy = staticmethod(lambda: SamplingParams(temperature=0))
    stack.enter_context(mock.patch.object(SamplingParams, "for_sampler_warmup", greedy))
    stack.enter_context(mock.patch.object(CPUWorker, "compile_or_warm_up_model", warm))
    return stack


def profiling():
    """Workers for CPUs measure graphs as those for GPUs do, in a small pool of vLLM's own."""
    from vllm.v1.worker.cpu_worker import CPUWorker
    from vllm.v1.worker.gpu import cudagraph_utils

    plain = CPUWorker.determine_available_memory

    def measured(worker):
        runner = worker.model_runner
        with mock.patch.object(runner.compilation_config, "max_cudagraph_capture_size", 4):
            cudagraph_utils._init_minimal_kv_cache_for_profiling(runner)
        runner._dummy_run(4, uniform_decode=True)
        cudagraph_utils._teardown_profiling_state(runner)
        return plain(worker)

    return mock.patch.object(CPUWorker, "determine_available_memory", measured)


def answers(
    model,
    policy=None,
    lengths=LENGTHS,
    tokens=TOKENS,
    asked=None,
    fails=None,
    as_on_gpus=False,
    **options,
):
    """What stock vLLM answers where there is no policy, to prompts of these lengths.

    ``asked`` is what each request asks of Foveate; ``fails`` the length of a prompt that cannot be
    compressed; ``as_on_gpus`` says whether the engine measures and warms up as on a GPU; the rest,
    options of the engine.
    """
    from tests.serving.engine import engine, prompts, serve
    from tests.serving.following import recorded

    with contextlib.ExitStack() as stack:
        boundaries = stack.enter_context(recorded())
        for first in (profiling(), warming_up()) if as_on_gpus else ():
            stack.enter_context(first)
        llm = stack.enter_context(engine(model, policy, **SIZES | options))
        before = read_to_their_end(model)
        core = llm.llm_engine.engine_core.engine_core
        runner = type(core.model_executor.driver_worker.worker.model_runner)
        about = {
            "runner": f"{runner.__module__}.{runner.__name__}",
            "ahead": core.batch_queue is not None,
        }
        if fails is not None:
            return about | ends(llm, prompts(lengths), tokens, fails)
        served = serve(llm, prompts(lengths), tokens, logprobs=5, asked=asked)
        counted = {"warmed": before, "counted": read_to_their_end(model) - before}
        return about | as_json(served, boundaries) | counted


def read_to_their_end(model):
    """Return the prompts counted by this process so far, under all policies."""
    from prometheus_client import REGISTRY

    samples = (sample for metric in REGISTRY.collect() for sample in metric.samples)
    return sum(
        sample.value
        for sample in samples
        if sample.name == "foveate:prompts_total" and sample.labels["model_name"] == model
    )


def ends(llm, given, tokens, fails):
    """How each request ended, where prompts of one length cannot be compressed."""
    from foveate.vllm.worker import attention
    from tests.serving.test_robust import idle, reasons

    plain = attention.after_pass

    def failing(prompts, cells, *more):
        if cells[0].prompt.length == fails:
            raise MemoryError("no memory left for its scores")
        return plain(prompts, cells, *more)

    with mock.patch.object(attention, "after_pass", failing):
        found = reasons(llm, given, tokens)
    return {"ended": found, "idle": idle(llm).get_num_free_blocks()}


def as_json(served, boundaries):
    """Of what was served, and was kept at each of the boundaries, what JSON can hold."""
    kept = {
        f"{name},{place}": [head.tolist() for head in positions]
        for (name, place), positions in served.kept.items()
    }
    return {
        "tokens": [answer.tokens for answer in served.answers],
        "logprobs": [answer.logprobs.tolist() for answer in served.answers],
        "kept": kept,
        "boundaries": [
            [
                [*at, [head.tolist() for head in heads]]
                for at, heads in boundaries.get(name, {}).items()
            ]
            for name in range(len(served.answers))
        ],
        "free": served.free,
        "running": served.running,
        "preemptions": served.preemptions,
        "shared": served.shared,
        "idle": served.idle,
    }


def main(model, kind, *runs):
    """Prints a list, with a dictionary for each run."""
    ahead = kind == "async"
    with asynchronous() if ahead else contextlib.nullcontext():
        print(json.dumps([answers(model, **told(run), async_scheduling=ahead) for run in runs]))


def told(run):
    return json.loads(run) if run.startswith("{") else {"policy": run or None}


if __name__ == "__main__":
    interpreted(second=True)
    main(*sys.argv[1:])
