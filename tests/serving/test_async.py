"""Asynchronous scheduling, which vLLM's platform for CPUs turns off and Foveate refuses: what its
scheduler would do. Steps overlap in its books alone here, as a CPU runs them one by one.
"""

from unittest import mock

from transformers import AutoModelForCausalLM

from tests.serving.engine import engine, prompts, serve
from tests.serving.test_llama import check_against_transformers

POLICY = "snapkv:budget=60%,window=8"


def test_blocks_are_freed_only_when_no_step_in_flight_reads_them(llama):
    """Asynchronous scheduling in the first runner | works | also when requests are preempted"""
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config

    def on(config):
        check(config)
        config.scheduler_config.async_scheduling = True

    with (
        mock.patch.object(CpuPlatform, "check_and_update_config", staticmethod(on)),
        engine(
            llama, POLICY, num_gpu_blocks_override=30, max_model_len=512, async_scheduling=True
        ) as llm,
    ):
        core = llm.llm_engine.engine_core.engine_core
        assert type(core.scheduler).__name__ == "FoveateAsyncScheduler"
        assert core.batch_queue is not None
        served = serve(llm, prompts([200] * 6), tokens=80)
    assert served.preemptions > 0
    assert served.idle == 29
    model = AutoModelForCausalLM.from_pretrained(llama).eval()
    check_against_transformers(model, POLICY, served)
