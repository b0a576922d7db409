"""vLLM's second model runner, and Foveate in it, on a CPU in Triton's interpreter. A process of its
own, as vLLM decides on Triton when it is first imported. Prints what was answered, by run.

    python -m tests.serving.v2_interpreted MODEL sync|async POLICY...
"""

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


def answers(model, policy, **options):
    """Of stock vLLM where there is no policy."""
    from tests.serving.engine import engine, prompts, serve

    with engine(model, policy, **SIZES, **options) as llm:
        worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
        runner = type(worker.model_runner)
        served = serve(llm, prompts(LENGTHS), TOKENS, logprobs=5)
    kept = {
        f"{name},{place}": [head.tolist() for head in positions]
        for (name, place), positions in served.kept.items()
    }
    return {
        "runner": f"{runner.__module__}.{runner.__name__}",
        "tokens": [answer.tokens for answer in served.answers],
        "logprobs": [answer.logprobs.tolist() for answer in served.answers],
        "kept": kept,
        "free": served.free,
        "idle": served.idle,
    }


if __name__ == "__main__":
    interpreted(second=True)
    model, kind, *policies = sys.argv[1:]
    with asynchronous() if kind == "async" else mock.patch.dict({}):
        found = [
            answers(model, policy or None, async_scheduling=kind == "async") for policy in policies
        ]
    print(json.dumps(found))
