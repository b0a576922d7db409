"""A vLLM engine inside the test's process, and what it answers."""

import contextlib
import gc
import random
from collections.abc import Mapping
from typing import NamedTuple

import torch

from tests.answers import certain

VOCABULARY = 512
WORKER = "foveate.vllm.Worker"
SCHEDULER = "foveate.vllm.Scheduler"


class Answer(NamedTuple):
    prompt: list[int]
    tokens: list[int]
    logprobs: torch.Tensor  # [tokens, vocabulary], or of the likeliest tokens alone
    kept: Mapping = {}  # place -> positions [h, k]


class Served(NamedTuple):
    answers: list[Answer]
    free: list[int]  # blocks, after each step
    running: list[int]  # requests, after each step
    kept: dict  # (request, place) -> positions [h, k]
    vision: dict  # request -> True at visual tokens [n]
    preemptions: int
    idle: int  # blocks free at the end
    shared: list[int]  # tokens of each prompt that lay in the pool already


def prompts(lengths, seed=0):
    draw = random.Random(seed)
    return [[draw.randrange(3, VOCABULARY) for _ in range(n)] for n in lengths]


@contextlib.contextmanager
def engine(model, policy=None, tiers=8, policies=(), **options):
    """An engine under that policy, or one of those by request; stock vLLM without one."""
    llm_of = imported()
    ours = {"foveate": {"policy": policy, "policies": list(policies), "tiers": tiers}}
    ours = {"worker_cls": WORKER, "scheduler_cls": SCHEDULER, "additional_config": ours}
    under = {} if policy is None else ours
    settings = {
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 1024,
        "max_num_seqs": 8,
        "block_size": 32,
        "num_gpu_blocks_override": 64,
        "kv_cache_memory_bytes": 64 << 20,
        "enable_prefix_caching": False,
        "max_logprobs": -1,
        "skip_tokenizer_init": True,
        "disable_log_stats": True,
    }
    llm = llm_of(model=model, **(settings | under | options))
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def imported():
    """vLLM's class of engines, made quick to start: its searches for garbage, a dozen an engine,
    skip what is there before, and a model's class is looked at here, not in another process.
    """
    from vllm import LLM
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda look: look()
    gc.freeze()  # until vLLM undoes it, as an engine ends
    return LLM


def greedy(tokens, asked=None, **options):
    """Sampling that always takes the likeliest; ``asked`` is what a request asks of Foveate."""
    from vllm import SamplingParams

    plain = {"temperature": 0, "detokenize": False, "ignore_eos": True, "max_tokens": tokens}
    return SamplingParams(**plain | options, extra_args=asked)


def serve(llm, given, tokens=24, logprobs=-1, asked=None):
    """All prompts at once, greedily; every step is watched. Prompts are lists of tokens, or
    whatever else vLLM takes; ``logprobs`` is how many of the likeliest are wanted, -1 all;
    ``asked`` is what each request asks of Foveate.
    """
    core = llm.llm_engine.engine_core.engine_core
    scheduler = core.scheduler
    pool = scheduler.kv_cache_manager.block_pool
    for name, prompt in enumerate(given):
        prompt = {"prompt_token_ids": prompt} if isinstance(prompt, list) else prompt
        extra = asked[name] if asked else None
        llm.llm_engine.add_request(str(name), prompt, greedy(tokens, extra, logprobs=logprobs))
    requests = list(scheduler.requests.values())
    done, free, running, kept, vision = {}, [], [], {}, {}
    while llm.llm_engine.has_unfinished_requests():
        for output in llm.llm_engine.step():
            if output.finished:
                done[int(output.request_id.split("-")[0])] = output
        free.append(pool.get_num_free_blocks())
        running.append(len(scheduler.running))
        for name, prompt in known_to(llm).items():
            vision[int(name)] = prompt.vision
            kept |= {(int(name), place): alike(one) for place, one in prompt.kept.items()}
    answers = []
    for name in range(len(given)):
        (answer,) = done[name].outputs
        rows = [by_token(row) if logprobs < 0 else by_rank(row) for row in answer.logprobs]
        read = list(done[name].prompt_token_ids)
        mine = {place: found for (who, place), found in kept.items() if who == name}
        answers.append(Answer(read, list(answer.token_ids), torch.tensor(rows), mine))
    preempted = sum(request.num_preemptions for request in requests)
    shared = [done[name].num_cached_tokens for name in range(len(given))]
    idle = pool.get_num_free_blocks()
    return Served(answers, free, running, kept, vision, preempted, idle, shared)


def known_to(llm):
    """What our worker knows of prompts, by request, until the step after their last; under stock
    vLLM nothing.
    """
    core = llm.llm_engine.engine_core.engine_core
    prompts = getattr(core.model_executor.driver_worker.worker, "prompts", None)
    known = {} if prompts is None else prompts._known
    return {name.split("-")[0]: prompt for name, prompt in known.items()}


class Traffic:
    """Requests that come at random, ``most`` of them at once and up to ``burst`` before a step, and
    some that go away.
    """

    def __init__(self, llm, draw, requests, *, most, burst, leaving):
        self._front, self._draw, self._requests = llm.llm_engine, draw, requests
        self._scheduler = llm.llm_engine.engine_core.engine_core.scheduler
        self._most, self._burst, self._leaving = most, burst, leaving
        self._open = set()
        self.cancelled, self.preempted = 0, set()

    def steps(self, ask):
        """The outputs of every step, until all are done; ``ask(name)`` gives a prompt and how it is
        sampled.
        """
        asked = 0
        while asked < self._requests or self._front.has_unfinished_requests():
            left = min(self._requests - asked, self._most - len(self._open))
            for _ in range(min(self._draw.randint(0, self._burst), left)):
                self._front.add_request(str(asked), *ask(str(asked)))
                self._open.add(str(asked))
                asked += 1
            if self._open and self._draw.random() < self._leaving:
                self._leave(self._draw.choice(sorted(self._open)))
            outputs = self._front.step()
            self._open -= {one.request_id for one in outputs if one.finished}
            yield outputs
            waiting = self._scheduler.waiting
            self.preempted |= {one.request_id for one in waiting if one.num_preemptions}

    def _leave(self, name):
        self._front.abort_request([name])
        self._open.discard(name)
        self.cancelled += 1


def alike(positions):
    """One tensor [h, k] where all heads keep the same number, else a list."""
    same = len({len(one) for one in positions}) == 1
    return torch.stack(positions) if same else positions


def by_token(row):
    return [row[token].logprob for token in range(len(row))]


def by_rank(row):
    return [one.logprob for one in sorted(row.values(), key=lambda one: one.rank)]


def check_alike(tokens, served):
    """Answers of another engine, or of other batches: the same as far as they are certain."""
    for mine, answer in zip(tokens, served.answers, strict=True):
        sure = certain(answer.logprobs, 2e-3)
        assert mine[:sure] == answer.tokens[:sure]
        assert len(mine) == len(answer.tokens)


def check_same(served, stock):
    """The same tokens, log-probabilities to the last bit, and blocks after every step."""
    for mine, theirs in zip(served.answers, stock.answers, strict=True):
        assert mine.tokens == theirs.tokens
        assert torch.equal(mine.logprobs, theirs.logprobs)
    assert served.free == stock.free
