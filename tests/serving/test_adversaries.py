"""No request touches another: clients that come and go at random, with budgets of every type and
spelling, are answered the same to the last bit whatever stands in the prompts beside theirs.
"""

import contextlib
from dataclasses import dataclass, field

import pytest

import foveate
from foveate.policies.amount import Amount
from tests.profiles import saved
from tests.serving.adversaries import Pictures, Prompts, play, script
from tests.serving.engine import engine
from tests.serving.v2_interpreted import asynchronous

KNORM, SNAPKV, H2O = "knorm:budget=40%", "snapkv:budget=25%,window=8", "h2o:budget=30%"
WIDE, NARROW = (  # these compress again: of more tokens than come between boundaries, and of fewer
    "knorm:budget=96,when=over_budget(every=32,reading=true)",
    "snapkv:budget=40,window=8,when=over_budget(every=64,reading=true)",
)


@dataclass(frozen=True)
class Case:
    """An engine, and how many clients it gets: all of them, and in a short run."""

    model: str
    policies: tuple[str, ...]
    clients: int
    short: int
    pool: int
    options: dict = field(default_factory=dict)
    environ: dict = field(default_factory=dict)
    least: int = 1
    ahead: bool = False


CASES = {
    "llama": Case(
        "llama",
        (KNORM, SNAPKV, H2O, WIDE, NARROW),
        500,
        50,
        24,
        {"scheduling_policy": "priority", "max_num_batched_tokens": 77},
    ),
    "llama by priority, in tiers": Case(
        "llama",
        ("pyramidkv:budget=40%,window=8,beta=2", SNAPKV, "h2o:budget=50%"),
        350,
        0,
        30,
        {"scheduling_policy": "priority", "block_size": 64},
        least=40,
    ),
    "llama by head, asynchronous": Case(
        "llama",
        ("headkv:budget=40%,window=8,profile={}", KNORM),
        250,
        0,
        60,
        {"scheduling_policy": "priority"},
        least=40,
        ahead=True,
    ),
    "llama by two workers": Case(
        "llama",
        (KNORM, SNAPKV, WIDE, NARROW),
        100,
        0,
        24,
        {"tensor_parallel_size": 2, "scheduling_policy": "priority"},
        {"VLLM_CPU_OMP_THREADS_BIND": "0|1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"},
    ),
    "gemma 4": Case("gemma4", (KNORM, SNAPKV, H2O), 450, 60, 18, {"scheduling_policy": "priority"}),
    "qwen2-vl": Case(
        "qwen2_vl",
        (KNORM, "mixkv:budget=30%,window=8", H2O, WIDE),
        350,
        24,
        20,
        {
            "skip_tokenizer_init": False,
            "limit_mm_per_prompt": {"image": 2, "video": 0},
            "scheduling_policy": "priority",
        },
    ),
}
RUNS = [
    pytest.param(name, count, marks=[pytest.mark.slow] if count == case.clients else [], id=told)
    for name, case in CASES.items()
    for told, count in ((f"{name}, short", case.short), (name, case.clients))
    if count
]


def settings(case):
    return {
        "max_model_len": 320 if case.model == "qwen2_vl" else 256,
        "max_num_seqs": 10,
        "max_num_batched_tokens": 96 if case.model == "llama" else 192,
        "num_gpu_blocks_override": case.pool,
        "enable_prefix_caching": True,
        **case.options,
    }


@pytest.mark.parametrize(("name", "count"), RUNS)
def test_no_request_touches_another(tiny_folder, tmp_path, monkeypatch, name, count):
    case = CASES[name]
    folder = tiny_folder(case.model)
    for variable, value in case.environ.items():
        monkeypatch.setenv(variable, value)
    heads = [[0.2, 3.0], [1.0, 0.1]]
    profile = saved(tmp_path, "headkv", heads, folder.split("/")[-1])
    policies = [policy.format(profile) for policy in case.policies]
    prompts = (Pictures if case.model == "qwen2_vl" else Prompts)(seed=1)
    priorities = case.options.get("scheduling_policy") == "priority"
    clients = script(8, count, prompts, policies, case.least, priorities)
    played = []
    for moved in (False, True):
        with contextlib.ExitStack() as stack:
            if case.ahead:
                stack.enter_context(asynchronous())
            ahead = {"async_scheduling": True} if case.ahead else {}
            more = settings(case) | ahead
            llm = stack.enter_context(engine(folder, policies[0], policies=policies[1:], **more))
            played.append(play(llm, clients, prompts, moved))
            check_nothing_is_left(llm, case)
    check_plans(played[0], clients, policies, case.options.get("block_size", 32))
    check_answers(*played, clients)
    print(f"{name}: {summary(played[0], clients)}")


def check_nothing_is_left(llm, case):
    core = llm.llm_engine.engine_core.engine_core
    scheduler = core.scheduler
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == case.pool - 1
    assert not scheduler.plans
    assert not any((scheduler._freed, scheduler._starts, scheduler._beginnings._awaited))
    if "tensor_parallel_size" not in case.options:
        prompts = core.model_executor.driver_worker.worker.prompts
        assert not any((prompts._known, prompts._plans, prompts._fails, prompts.books._books))


def check_plans(played, clients, policies, block):
    """Each is served with what it asked, whoever asked before; ``block`` is that of what is
    compressed.
    """
    for client in clients:
        if client.name in played.refused:
            continue
        plan, given = played.plans[client.name], client.asked[0]
        name = given.get("foveate_policy", policies[0])
        if name == "full":
            assert plan.policy is None
            continue
        budget = given.get("foveate_budget", foveate.policy(name).amount)
        assert plan.policy.amount == Amount.of(budget), client
        context = given.get("foveate_context")
        if context is not None:
            assert plan.length == context // block * block, client


def check_answers(first, second, clients):
    """All whose contents were the same are answered the same, and the others otherwise."""
    assert first.refused == second.refused
    assert not first.failed
    assert not second.failed
    for client in clients:
        mine, theirs = (one.answers.get(client.name) for one in (first, second))
        if not client.moves:
            assert mine == theirs, client
        elif mine is not None:
            assert len(mine[0]) == len(theirs[0])
    moved = [client.name for client in clients if client.moves and client.name in first.answers]
    others = sum(first.answers[name] != second.answers[name] for name in moved)
    assert others > 0.9 * len(moved)


def summary(played, clients):
    return (
        f"{len(clients)} clients, {sum(not one.moves for one in clients)} compared bit for bit; "
        f"refused {len(played.refused)}, left before they were scheduled "
        f"{len(played.unscheduled)}, found a beginning {played.found}, "
        f"waited after a preemption {played.preempted} steps"
    )
