"""What the transformers backend answers to the same prompt."""

from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from transformers import DynamicCache

import foveate
from foveate.hf.layer.support import foveate_layers
from foveate.hf.model.internals import CACHE
from foveate.hf.model.modality import visual_tokens
from foveate.policies.amount import Amount
from tests.jitter import WIDER, other_side
from tests.ties import NEAR, choices, settled, ties

NOISE = 1e-3 + 10 * WIDER  # of log-probabilities, between vLLM's kernels and transformers'
LEAD = 2 * NOISE


@dataclass(frozen=True, kw_only=True)
class Counted:
    """A budget of given numbers: of each layer, those of its KV heads."""

    amount: Amount
    counts: tuple[tuple[int, ...], ...]
    scope: str = field(default="layer", init=False)

    def _of(self, one):
        return torch.tensor(self.counts[one.layer.ordinal]).expand_as(one.available)

    def pairs(self, one, tokens):
        return self._of(one).sum(-1)

    def __call__(self, scored, tokens):
        return [self._of(one) for one in scored]


def counted(policy, rooms, prompt, block=32):
    """What each layer keeps of a prompt of that length, and the policy with these counts."""
    layers, same = counted_by_head(policy, rooms, prompt, 1, block)
    return tuple(count for (count,) in layers), same


def counted_by_head(policy, rooms, prompt, heads, block=32):
    """The same of KV heads, layer after layer."""
    counts = [room.kept(prompt, block) for room in rooms]
    layers = tuple(tuple(counts[i : i + heads]) for i in range(0, len(counts), heads))
    amount = Amount.of(rooms[0].budget(prompt, block))
    return layers, replace(policy, budget=Counted(amount=amount, counts=layers))


def by_transformers(model, policy, answer, context=None, lead=LEAD, near=NEAR):
    """Positions kept by each compressed layer, tokens and log-probabilities; vLLM's answer is fed
    in, and counts as ours where it is as likely as the likeliest to within ``lead``. Of a prompt
    with a ``context``, these first tokens are compressed, then the rest is read. Where vLLM keeps
    other pairs that score the same, to within ``near``, all that is returned is its own: it may be
    right.
    """
    with foveate.compress(model, policy), torch.no_grad(), other_side(), choices() as made:
        cache = DynamicCache(config=model.config)
        first, rest = torch.tensor([answer.prompt]).tensor_split([context or len(answer.prompt)], 1)
        out = model(first, **{CACHE: cache}, use_cache=True)
        positions = [layer.pairs.columns[0] for layer in foveate_layers(cache)]
        if tie_fell_otherwise(answer.kept, made, near):
            mine = [answer.kept.get(place, own) for place, own in enumerate(positions)]
            return mine, answer.tokens, answer.logprobs
        if rest.numel():
            out = model(rest, **{CACHE: cache}, use_cache=True)
        tokens, rows = [], []
        for token in answer.tokens:
            rows.append(out.logits[0, -1].log_softmax(-1))
            near = rows[-1][token] >= rows[-1].max() - lead
            tokens.append(token if near else int(rows[-1].argmax()))
            out = model(torch.tensor([[token]]), **{CACHE: cache}, use_cache=True)
    return positions, tokens, torch.stack(rows)


def tie_fell_otherwise(kept, made, near):
    """Whether other pairs are kept than those that were chosen here, and all of them tie."""
    unlike = False
    for choice in made:
        layers = zip(choice.scored, choice.kept, strict=True)
        for place, (scored, own) in enumerate(layers):
            held = kept.get(scored.layer.ordinal)
            if held is None:
                continue
            theirs = torch.zeros_like(own.mask[0])
            for head, places in enumerate(held):
                theirs[head, places] = True
            if not torch.equal(theirs, own.mask[0]):
                unlike = True
                if bool(((theirs ^ own.mask[0]) & ~ties(choice, near)[place][0]).any()):
                    return False
    return unlike


def greedy(model, policy, prompt, tokens, lead):
    """The tokens that the transformers backend answers; None if one of them is not ahead of the
    next best by that ``lead`` of its logit, or if a pair is kept by a tie.
    """
    with foveate.compress(model, policy), torch.no_grad(), other_side(), choices() as made:
        cache = DynamicCache()

        def passed(tokens):
            return model(torch.tensor([tokens]), **{CACHE: cache}, use_cache=True).logits[0, -1]

        answer = ahead(passed(prompt), lambda answer: passed(answer[-1:]), tokens, lead)
    return answer if len(answer) == tokens and all(map(settled, made)) else None


def ahead(logits, following, tokens, lead):
    """The likeliest tokens, up to the first that is not ahead of the next best by that ``lead``;
    ``following`` gives the logits after an answer.
    """
    answer = []
    while len(answer) < tokens:
        best, second = logits.topk(2).values.tolist()
        if best - second < lead:
            break
        answer.append(int(logits.argmax()))
        logits = following(answer)
    return answer


@torch.no_grad()
def certain(model, inputs, policy, tokens, lead, context=None, boundaries=()):
    """The tokens that the transformers backend answers, up to the first that is not ahead of the
    next best by that ``lead`` of its logit; none where a pair is kept by a tie. Of a prompt with a
    ``context``, these first tokens are compressed, and then the rest is read; one with
    ``boundaries`` is compressed after so many tokens as well.
    """
    embeds, places = embedded(model, inputs)
    seen = visual_tokens(model.config, inputs["input_ids"])[:, :context]
    cache = DynamicCache()
    passes = pairwise([0, *([context] if context else boundaries), embeds.shape[1]])
    with foveate.compress(model, policy, vision=seen) as session, other_side(), choices() as made:
        if boundaries:
            session.expect(embeds.shape[1])

        def passed(embeds, places):
            given = {"inputs_embeds": embeds, "position_ids": places, CACHE: cache}
            return model(**given, use_cache=True).logits[0, -1]

        for first, last in passes:
            logits = passed(embeds[:, first:last], places[..., first:last])

        def following(answer):
            one = model.get_input_embeddings()(torch.tensor([answer[-1:]]))
            return passed(one, places[..., -1:] + len(answer))

        return ahead(logits, following, tokens, lead) if all(map(settled, made)) else []


def embedded(model, inputs):
    """A prompt as the decoder reads it: its embeddings, images included, and its positions."""
    told = {}
    decoder = model.model.language_model
    hook = decoder.register_forward_pre_hook(
        lambda _, __, given: told.update(given), with_kwargs=True
    )
    model(**inputs, use_cache=False)
    hook.remove()
    embeds, places = told["inputs_embeds"], told["position_ids"]
    if places is None:  # text alone
        places = torch.arange(embeds.shape[1]).expand(3, 1, -1)
    return embeds, places
