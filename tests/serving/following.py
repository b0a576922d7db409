"""The transformers backend, which reads and answers with the boundaries of a request that vLLM has
served, and is fed its tokens.
"""

from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from unittest import mock

import torch
from transformers import DynamicCache

import foveate
from foveate.compression import reading
from foveate.compression.pipeline import keep
from foveate.hf.model.internals import CACHE
from foveate.hf.model.modality import visual_tokens
from foveate.policies.amount import Amount
from foveate.stages.when import OverBudget
from foveate.vllm.plans.rooms import Rooms
from foveate.vllm.plans.tiers import room_of
from tests.jitter import other_side
from tests.serving.reference import NOISE, embedded
from tests.ties import Choice, ties


@contextmanager
def recorded():
    """Fills a dictionary with what engines in this process keep at boundaries: by request, layer
    and tokens, the positions of each head.
    """
    from foveate.vllm.worker import attention

    found, plain = {}, attention.after_pass

    def noting(prompts, cells, ordinal, *more):
        kept = plain(prompts, cells, ordinal, *more)
        if kept is not None:
            name = int(cells[0].prompt.name.split("-")[0])
            heads = [head for one in kept for head in one.positions]
            found.setdefault(name, {})[ordinal, cells[0].until] = heads
        return kept

    with mock.patch.object(attention, "after_pass", noting):
        yield found


@contextmanager
def following(kept):
    """Inside, layers keep what is told for them and so many tokens, where that differs from their
    own choice in ties alone. The choices that were made, by layer and tokens, with the number of
    pairs that are no ties.
    """
    made = {}

    def followed(policy, scored, within=None, _groups=None):
        choice = Choice(policy, scored, within, keep(policy, scored, within))
        return [follow(choice, place) for place in range(len(scored))]

    def follow(choice, place):
        one, own = choice.scored[place], choice.kept[place]
        at = one.layer.ordinal, int(one.layer.slots.lengths[0])
        if bool(own.mask.all()):
            return own  # nothing leaves, as where a prompt ends soon after a boundary
        made[at] = 0
        if at not in kept:
            return own
        heads = zip(one.layer.pos[0], kept[at], strict=True)
        mask = torch.stack([torch.isin(pos, held) for pos, held in heads])[None]
        if torch.equal(mask, own.mask):
            return own
        made[at] = int(((mask ^ own.mask) & ~ties(choice)[place]).sum())
        k, v = choice.policy.merge(one, mask)
        return replace(own, mask=mask, k=k, v=v, counted=None)

    with mock.patch.object(reading, "keep", followed):
        yield made


@contextmanager
def budgets_of(boundaries):
    """Inside, a prompt keeps whole blocks at the boundaries within it, and at its end what these
    leave of it.
    """
    plain = reading.PromptReading.with_budget

    def with_budget(self, slots, at, *more):
        within = boundaries.every.reading and at.phase is reading.Phase.READING
        kept = boundaries.within if within else boundaries.kept
        if self.policy.amount != Amount.of(kept):
            self.policy = self.policy.but(budget=kept)
        return plain(self, slots, at, *more)

    with mock.patch.object(reading.PromptReading, "with_budget", with_budget):
        yield


@torch.no_grad()
def answered(model, policy, answer, kept, boundaries, inputs=None):
    """Log-probabilities [tokens, vocabulary] of an answer that vLLM gave, and the choices that were
    made (``following``) where vLLM's were ``kept``. A prompt is read from boundary to boundary;
    ``inputs`` are the model's where it has images.
    """
    length, ends, rows = len(answer.prompt), [0], []
    while (end := boundaries.after(ends[-1])) is not None and end < length:
        ends.append(end)
    read, seen = reader(model, answer, inputs)
    with foveate.compress(model, policy, vision=seen) as session, other_side():
        session.expect(length)
        cache = DynamicCache(config=model.config.get_text_config())
        with budgets_of(boundaries), following(kept) as made:
            for first, last in pairwise([*ends, length]):
                out = model(**read(first, last), **{CACHE: cache}, use_cache=True)
            for place in range(length, length + len(answer.tokens)):
                rows.append(out.logits[0, -1].log_softmax(-1))
                out = model(**read(place, place + 1), **{CACHE: cache}, use_cache=True)
    return torch.stack(rows), made


def reader(model, answer, inputs):
    """What the model is given of a request's tokens from one to another, and which are visual."""
    ids = torch.tensor([answer.prompt + answer.tokens])
    if inputs is None:
        return (lambda first, last: {"input_ids": ids[:, first:last]}), None
    embeds, places = embedded(model, inputs)
    said = torch.arange(1, len(answer.tokens) + 1)
    embeds = torch.cat([embeds, model.get_input_embeddings()(torch.tensor([answer.tokens]))], 1)
    places = torch.cat([places, places[..., -1:] + said], -1)

    def read(first, last):
        return {
            "inputs_embeds": embeds[:, first:last],
            "position_ids": places[..., first:last],
        }

    return read, visual_tokens(model.config, inputs["input_ids"])


def in_blocks(policy, length, block=32):
    """A policy as it compresses a prompt of that length in whole blocks, and the boundaries."""
    boundaries = Rooms((room_of(policy),), block).own(length)
    tokens, reading, answering = boundaries.every
    when = OverBudget(every=tokens, reading=reading, answering=answering)
    return policy.but(budget=boundaries.kept, when=when), boundaries


def same(model, spec, answer, kept, inputs=None, block=32, noise=NOISE):
    """Checks that positions at every boundary, and log-probabilities, are those of transformers;
    returns the boundaries.
    """
    policy, boundaries = in_blocks(foveate.policy(spec), len(answer.prompt), block)
    logprobs, made = answered(model, policy, answer, kept, boundaries, inputs)
    assert made.keys() == kept.keys()
    assert not any(made.values()), made
    if logprobs.shape != answer.logprobs.shape:  # of the likeliest tokens, in their order
        logprobs = logprobs.topk(answer.logprobs.shape[1], dim=-1).values
    torch.testing.assert_close(answer.logprobs, logprobs, rtol=0, atol=noise)
    return sorted({tokens for _, tokens in kept})
