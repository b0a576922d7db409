"""Requests whose prompt goes on after an answer (vLLM's streamed input)."""

import pytest
import torch

import foveate
from tests.serving.engine import Answer, engine, greedy, prompts
from tests.serving.following import answered, in_blocks, recorded
from tests.serving.reference import NOISE, by_transformers
from tests.serving.test_requests import Room

ONCE = "snapkv:budget=25%,window=8"
AGAIN = "snapkv:budget=64,window=8,when=over_budget(every=64)"
SUMS = "h2o:budget=64,when=over_budget(every=64,reading=true)"
FULL = {"foveate_policy": "full"}


class Session:
    """A request that is sent in parts, in the process of the engine."""

    def __init__(self, llm, name, asked=None):
        self._front, self._name, self._asked = llm.llm_engine, name, asked
        self.tokens, self.rows, self.finished = [], [], False

    def say(self, part, tokens, asked=None, preempted=False):
        """The tokens answered to the next part of the prompt, and their log-probabilities; the
        request may be ``preempted`` amid its answer.
        """
        self.send(part, tokens, asked)
        self.tokens, self.rows = [], []
        while len(self.tokens) < tokens and not self.finished:
            self.step()
            if preempted and len(self.tokens) == tokens // 2:
                scheduler = self._front.engine_core.engine_core.scheduler
                scheduler.reset_prefix_cache(reset_running_requests=True)
                preempted = False
        return list(self.tokens), torch.tensor(self.rows)

    def send(self, part, tokens, asked=None, resumable=True):
        request = self._front.input_processor.process_inputs(
            request_id=self._name,
            prompt={"prompt_token_ids": list(part)},
            params=greedy(tokens, asked or self._asked, logprobs=-1),
            supported_tasks=("generate",),
            resumable=resumable,
        )
        self._front.engine_core.add_request(request)

    def end(self):
        self.send([0], 1, resumable=False)

    def step(self):
        for output in self._front.engine_core.get_output().outputs:
            if output.request_id != self._name:
                continue
            self.tokens += output.new_token_ids
            self.finished |= (
                output.finish_reason is not None and str(output.finish_reason) == "error"
            )
            if output.new_logprobs is not None:
                for ids, row in zip(*output.new_logprobs[:2], strict=True):
                    order = torch.tensor(ids)[1:].argsort()  # the first is the sampled token
                    self.rows.append(torch.tensor(row)[1:][order].tolist())


def conversation(session, parts, tokens):
    """All tokens after the first part, and log-probabilities where they were answered."""
    after, expected = [], []
    for place, part in enumerate(parts):
        if place:
            after = after[:-1] + part  # vLLM drops the last token of an answer that goes on
            expected = expected + [None] * (len(part) - 1)
        answer, rows = session.say(part, tokens, preempted=place == 2)
        expected += list(rows)
        after += answer
    return after, expected


@pytest.mark.parametrize(("policy", "pool"), [(AGAIN, 64), (SUMS, 8)])
def test_a_conversation_goes_on_from_what_it_keeps(llama, model, policy, pool):
    """Streamed input, a prompt that goes on after an answer | works | it goes on from the pairs
    that it has kept, under `when=over_budget(every=N)` in bounded memory
    """
    parts = prompts([150, 70, 10, 90], seed=3)
    sizes = {"num_gpu_blocks_override": pool, "max_num_batched_tokens": 48, "max_model_len": 512}
    with recorded() as kept, engine(llama, policy, **sizes) as llm:
        blocks = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
        idle = blocks.get_num_free_blocks()
        session = Session(llm, "0")
        after, expected = conversation(session, parts, 20)
        session.end()
        session.step()
        assert blocks.get_num_free_blocks() == idle
    answer = Answer(parts[0], after, None)
    spec, boundaries = in_blocks(foveate.policy(policy), len(parts[0]))
    logprobs, made = answered(model, spec, answer, kept[0], boundaries)
    assert made.keys() == kept[0].keys()
    assert not any(made.values())
    assert len({tokens for _, tokens in made}) >= 4
    check(expected, logprobs)


def check(expected, logprobs):
    places = [place for place, row in enumerate(expected) if row is not None]
    assert len(places) > 70
    rows = torch.stack([expected[place] for place in places])
    torch.testing.assert_close(rows, logprobs[places], rtol=0, atol=NOISE)


def test_a_conversation_that_is_compressed_once_goes_on_beside_others(llama, model):
    parts = prompts([150, 70, 10, 90], seed=3)
    with engine(llama, ONCE, max_num_batched_tokens=96) as llm:
        others = [Session(llm, str(name)) for name in (1, 2)]
        for other, part in zip(others, prompts([200, 230]), strict=True):
            other.send(part, 150)
        session = Session(llm, "0")
        after, expected = conversation(session, parts, 20)
    policy = foveate.policy(ONCE)
    room = Room.of(policy.amount, policy.select.protects)
    policy = policy.but(budget=room.kept(150, 32))
    _, _, logprobs = by_transformers(model, policy, Answer(parts[0], after, None))
    check(expected, logprobs)


def test_what_a_conversation_cannot_change_is_refused(llama):
    first, more = prompts([150, 40])
    with engine(llama, ONCE, policies=[AGAIN]) as llm:
        scheduler = llm.llm_engine.engine_core.engine_core.scheduler
        session = Session(llm, "0", FULL)
        session.say(first, 4)
        session.send(more, 4, {"foveate_budget": "50%"})
        while not session.finished:
            session.step()
        assert not scheduler.requests
        other = Session(llm, "1")  # the engine goes on
        assert len(other.say(first, 4)[0]) == 4
