"""Asynchronous scheduling in the first runner, which vLLM's platform for CPUs turns off. Steps
overlap in the scheduler's books alone here, as a CPU runs them one by one.
"""

from transformers import AutoModelForCausalLM

from tests.serving.engine import engine, prompts, serve
from tests.serving.test_llama import check_against_transformers
from tests.serving.v2_interpreted import asynchronous

POLICY = "snapkv:budget=60%,window=8"


def test_blocks_are_freed_only_when_no_step_in_flight_reads_them(llama):
    """Asynchronous scheduling in the first runner | works | also when requests are preempted"""
    small = {"num_gpu_blocks_override": 30, "max_model_len": 512}
    with asynchronous(), engine(llama, POLICY, **small, async_scheduling=True) as llm:
        core = llm.llm_engine.engine_core.engine_core
        assert type(core.scheduler).__name__ == "FoveateAsyncScheduler"
        assert core.batch_queue is not None
        served = serve(llm, prompts([200] * 6), tokens=80)
    assert served.preemptions > 0
    assert served.idle == 29
    model = AutoModelForCausalLM.from_pretrained(llama).eval()
    check_against_transformers(model, POLICY, served)
