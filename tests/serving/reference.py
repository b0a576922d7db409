"""What the transformers backend answers to the same prompt."""

from dataclasses import dataclass, field, replace

import torch
from transformers import DynamicCache

import foveate
from foveate.backends.hf.internals import CACHE
from foveate.backends.hf.support import foveate_layers
from foveate.core.amount import Amount


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
    counts = tuple(room.kept(prompt, block) for room in rooms)
    amount = Amount.of(rooms[0].average(prompt))
    by_layer = [(count,) for count in counts]
    return counts, replace(policy, budget=Counted(amount=amount, counts=tuple(by_layer)))


def counted_by_head(policy, rooms, prompt, heads, block=32):
    """The same of KV heads, layer after layer."""
    counts = [room.kept(prompt, block) for room in rooms]
    layers = tuple(tuple(counts[i : i + heads]) for i in range(0, len(counts), heads))
    amount = Amount.of(rooms[0].average(prompt))
    return layers, replace(policy, budget=Counted(amount=amount, counts=layers))


def by_transformers(model, policy, answer):
    """Positions kept by each compressed layer, tokens and log-probabilities; vLLM's answer is fed
    in.
    """
    with foveate.compress(model, policy), torch.no_grad():
        cache = DynamicCache(config=model.config)
        out = model(torch.tensor([answer.prompt]), **{CACHE: cache}, use_cache=True)
        positions = [layer.pairs.columns[0] for layer in foveate_layers(cache)]
        tokens, rows = [], []
        for token in answer.tokens:
            rows.append(out.logits[0, -1].log_softmax(-1))
            tokens.append(int(rows[-1].argmax()))
            out = model(torch.tensor([[token]]), **{CACHE: cache}, use_cache=True)
    return positions, tokens, torch.stack(rows)


def greedy(model, policy, prompt, tokens, lead):
    """The tokens that the transformers backend answers; None if one of them is not ahead of the
    next best by that ``lead`` of its logit.
    """
    with foveate.compress(model, policy), torch.no_grad():
        cache = DynamicCache()
        logits = model(torch.tensor([prompt]), **{CACHE: cache}, use_cache=True).logits[0, -1]
        answer = []
        for _ in range(tokens):
            best, second = logits.topk(2).values.tolist()
            if best - second < lead:
                return None
            answer.append(int(logits.argmax()))
            out = model(torch.tensor([answer[-1:]]), **{CACHE: cache}, use_cache=True)
            logits = out.logits[0, -1]
    return answer
