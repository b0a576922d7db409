"""Long answers token by token: the same likelihoods as elsewhere, and the bytes held meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import foveate
from foveate.cache.pairs import GROWTH
from foveate.hf import branch, compress, record
from foveate.hf.measuring.answer import ends, greedy, teacher_forced
from foveate.loading.model import Loaded
from foveate_lab.eval.answering.measure import measured
from foveate_lab.eval.answering.perplexity import perplexity
from foveate_lab.eval.tasks import find_task
from foveate_lab.eval.token_losses import answered, token_losses

LENGTH = 24
GROWING = ("full", "snapkv:budget=50%,window=4")
STEADY = ("h2o:budget=50%,when=over_budget", "rkv:budget=50%,window=4,every=4")


def prompts(rows: int) -> torch.Tensor:
    return torch.randint(3, 60, (rows, 40), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("spec", [*GROWING, *STEADY])
def test_it_thinks_of_each_token_what_is_thought_of_it_elsewhere(loaded: Loaded, spec: str) -> None:
    ids = prompts(2)
    tokens = torch.randint(3, 60, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    recording, *single = (record(loaded.model, input_ids=rows) for rows in (ids, ids[:1], ids[1:]))
    with compress(loaded.model, spec) as session:
        both = token_losses(session, branch(session, recording), recording.logits, tokens)
        for row, alone in enumerate(single):
            cache = branch(session, alone)
            with torch.no_grad():
                other = teacher_forced(session, cache, alone.logits, tokens[row].tolist())
            nll = -other.logits.log_softmax(-1).gather(1, tokens[row][:, None])[:, 0]
            assert_close(both.nll[row], nll, rtol=1e-4, atol=1e-4)
            assert both.likeliest[row].tolist() == other.logits.argmax(-1).tolist()
    assert both.perplexity() == pytest.approx(float(both.nll.double().mean().exp()))
    assert both.agreement(both) == 1.0
    stored = both.stored_bytes
    if spec in GROWING:
        assert stored[-1] > stored[0]
    else:  # the pairs of the budget, room for those that come before some leave, a list of columns
        assert max(stored) <= stored[0] * (20 + GROWTH) / 20 * 1.01
        assert max(stored[len(stored) // 2 :]) <= max(stored[: len(stored) // 2])
        assert max(stored[8:]) == max(stored[-8:])


def test_without_noise_the_answer_is_the_greedy_one(loaded: Loaded) -> None:
    recording, stop = record(loaded.model, input_ids=prompts(1)), ends(loaded.model)
    with compress(loaded.model, "full") as session:
        first = recording.logits
        tokens, mine = answered(
            session, branch(session, recording), first, LENGTH, temperature=0.0, without=stop
        )
        with torch.no_grad():
            expected = greedy(loaded.model, branch(session, recording), first, LENGTH)
        again = token_losses(session, branch(session, recording), first, tokens)
    if expected[-1] not in stop:
        assert tokens[0].tolist() == expected
    assert not set(tokens[0].tolist()) & stop
    assert torch.equal(mine.nll, again.nll)
    assert mine.stored_bytes == again.stored_bytes


def test_what_is_drawn_follows_from_the_seed_and_the_row(loaded: Loaded) -> None:
    recording = record(loaded.model, input_ids=prompts(1).expand(2, -1))

    def drawn(seed: int) -> torch.Tensor:
        with compress(loaded.model, "full") as session:
            cache = branch(session, recording)
            return answered(session, cache, recording.logits, 8, temperature=1.0, seed=seed)[0]

    assert torch.equal(drawn(0), drawn(0))
    assert not torch.equal(drawn(0), drawn(1))
    assert not torch.equal(*drawn(0))


@pytest.mark.slow
def test_the_task_tells_every_cache_how_the_text_goes_on(loaded: Loaded) -> None:
    task = find_task("long_answer")
    one, other = task.samples(2, 0)
    assert one.text != other.text
    assert one.text.split()[-1] != one.answers[0].split()[0]
    assert task.metric(one.answers[0], one) == pytest.approx(1)
    assert task.metric("", one) == 0
    short = replace(one, answers=(" ".join(one.answers[0].split()[:12]),))
    specs = ["h2o:budget=20%,when=over_budget", "prefixkv:budget=20%,when=fixed_slot"]
    for protocol in ("query-aware", "query-agnostic"):
        rows = list(measured(loaded, replace(task, longest=4), short, specs, protocol))
        assert all("error" not in row for row in rows)
        assert len({row["reference_nll"] for row in rows}) == 3
        assert perplexity(rows) is not None


def test_its_answers_are_500_tokens_and_more() -> None:
    from foveate.defaults import READS
    from foveate.loading.model import load

    tokenizer = load(READS).tokenizer
    for sample in find_task("long_answer").samples(3, 0):
        assert 500 <= len(tokenizer(sample.answers[0])["input_ids"]) <= 1200
    assert foveate.policy("h2o:budget=20%,when=over_budget").when.decodes
