"""What the maps of `recommended` are fitted to, beside its formulas, pair by pair."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close
from transformers import DynamicCache

import foveate
from foveate.errors import InvalidInput
from foveate.hf.measuring.gather import Watcher
from foveate.hf.model.internals import CACHE
from foveate.methods.recommended.fitting import UNASKED, ReadingDamage, worth
from foveate.methods.recommended.predicted import LEAST
from foveate.policies.policy import Policy
from foveate.stages.budget import Uniform
from foveate.stages.score import Reconstruction
from foveate.stages.score.damage import REST, squared_damage
from foveate.stages.score.reconstruction import NOTED
from foveate.stages.select import TopK
from tests import zoo
from tests.conformance.compare import check_generate
from tests.jitter import other_side
from tests.stages.layers import random_layer

AFTER, LONGEST = 30, 4
QUESTIONS = ((zoo.TEXT_FROM + 3, zoo.TEXT_FROM + 9), (zoo.TEXT_FROM + 5,))


def damaged(layer):
    """A layer with what damage is measured by."""
    generator = torch.Generator().manual_seed(3)
    hq, e = layer.q.shape[1], layer.v.shape[-1]
    return replace(
        layer,
        output_weight=torch.randn(hq, e, 7, generator=generator),
        residual_norm=torch.rand(len(layer.k), layer.q.shape[2], generator=generator) + 0.5,
    )


def attention(layer, row, head, place):
    """The slots that one query of a query head sees, its logits for them, and their values."""
    of_kv = head // layer.groups
    real = layer.valid[row, of_kv] & (layer.pos[row, of_kv] <= layer.q_pos[row, place])
    k, v = (t[row, of_kv, real].double() for t in (layer.k, layer.v))
    logits = k @ layer.q[row, head, place].double() * layer.scale
    return real.nonzero()[:, 0].tolist(), logits, v


def test_damage_is_how_far_an_output_moves_when_its_pair_goes():
    """By doing it: the softmax is made again without the pair."""
    layer = damaged(random_layer((9, 6), d=4, seed=2))
    found = torch.cat(list(squared_damage(layer)), dim=3).double()
    b, h, g, m, _ = found.shape
    expected = torch.zeros_like(found)
    for row in range(b):
        for head in range(h * g):
            for place in (p for p in range(m) if layer.q_pos[row, p] >= 0):
                slots, logits, v = attention(layer, row, head, place)
                out = logits.softmax(0) @ v
                for one, slot in enumerate(slots):
                    rest = [x for x in range(len(slots)) if x != one]
                    if logits.softmax(0)[one] > 1 - REST:
                        continue  # all that it attends to: bounded, not moved
                    moved = logits[rest].softmax(0) @ v[rest] - out
                    size = (moved @ layer.output_weight[head].double()).norm()
                    size = size / layer.residual_norm[row, place]
                    expected[row, head // g, head % g, place, slot] = size**2
    bounded = found.clone()
    bounded[expected == 0] = 0
    assert_close(bounded, expected, rtol=1e-3, atol=1e-6)
    with pytest.raises(InvalidInput, match="output projection"):
        next(squared_damage(replace(layer, output_weight=None)))


def noted(model, inputs, score):
    """What the score knows of every layer of a prompt, as it is asked for its values."""
    found = {}

    class Spy:
        turns_back, watched, names = False, None, ()

        def gather(self, layer, rotation):
            found[layer.ordinal] = layer
            return {}

        def finish(self, sums, rotation):
            return {}

    watcher = Watcher(Spy(), [], of=score)
    policy = Policy(score=watcher, budget=Uniform(amount=1), select=TopK())
    with foveate.compress(model, policy) as session:
        held = session.prefill(**inputs)
    assert held is session.cache
    return [found[ordinal] for ordinal in sorted(found)]


def eager(family):
    model = zoo.fresh(family)
    model.config.get_text_config(decoder=True)._attn_implementation_internal = "eager"
    return model


def heads_outputs(model, ids, **asked):
    """A whole pass, and what each layer's heads put out, with the graph from there on."""
    kept = []

    def note(module, args):
        kept.append(args[0] if args[0].requires_grad else args[0].detach().requires_grad_())
        return (kept[-1],)

    hooks = [one.self_attn.o_proj.register_forward_pre_hook(note) for one in model.model.layers]
    try:
        return model(input_ids=ids, **asked), kept
    finally:
        for hook in hooks:
            hook.remove()


def said_to(model, ids, question):
    """The prompt's beginning, a question, and the model's answer."""
    whole = torch.cat([ids[:, :AFTER], torch.tensor([question])], dim=1)
    with torch.no_grad():
        for _ in range(LONGEST):
            new = model(input_ids=whole).logits[:, -1].argmax(-1)
            whole = torch.cat([whole, new[:, None]], dim=1)
    return whole


def literal_loss(model, whole):
    """Of one question: sum_ih a / (1 - a) * g (v_j - o), [h, n] for every layer."""
    groups = model.config.num_attention_heads // model.config.num_key_value_heads
    cache = DynamicCache(config=model.config)
    out, outputs = heads_outputs(model, whole, output_attentions=True, **{CACHE: cache})
    sure = 0.0
    for logits in out.logits[0, -LONGEST - 1 : -1].double():
        top = int(logits.argmax())
        sure += logits[top] - torch.cat([logits[:top], logits[top + 1 :]]).logsumexp(-1)
    for place, gradient in enumerate(torch.autograd.grad(sure, outputs)):
        values, paid = cache.layers[place].values[0].double(), out.attentions[place][0].double()
        lost = torch.zeros(len(values), AFTER, dtype=torch.float64)
        for head in range(len(paid)):
            v, size = values[head // groups, :AFTER].detach(), values.shape[-1]
            mine = slice(head * size, head * size + size)
            for i in range(AFTER, whole.shape[1]):
                a = paid[head, i, :AFTER].detach()
                o, g = (t[0, i, mine].double().detach() for t in (outputs[place], gradient))
                lost[head // groups] += a / (1 - a).clamp_min(REST) * ((v - o) @ g)
        yield lost


def test_answers_lose_what_the_gradient_says():
    """Against whole passes, whose gradients come by another way."""
    model, inputs = eager("llama"), zoo.prompt("llama", lengths=(40,))
    model.generation_config.eos_token_id = None
    score = ReadingDamage(questions=QUESTIONS, after=AFTER, longest=LONGEST)
    layers = noted(model, inputs, score)
    with other_side():
        said = [said_to(model, inputs["input_ids"], question) for question in QUESTIONS]
        lost = [list(literal_loss(model, whole)) for whole in said]
    for layer, *of_questions in zip(layers, *lost, strict=True):
        found = layer.state["answers"][0]
        assert bool((found[:, AFTER:] == UNASKED).all())
        expected = sum(one.square() for one in of_questions)
        assert_close(
            found[:, :AFTER].double(), expected, rtol=1e-2, atol=1e-5 * float(expected.max())
        )


def literal_damage(model, ids, piece):
    """Of the places of a prompt that are read again after it: [h, g, m, n] for every layer."""
    n, groups = 40, model.config.num_attention_heads // model.config.num_key_value_heads
    cache = DynamicCache(config=model.config)
    asked = {"output_attentions": True, "output_hidden_states": True, CACHE: cache}
    with torch.no_grad():
        out = model(input_ids=torch.cat([ids, ids[:, piece]], dim=1), **asked)
    for place, attentions in enumerate(out.attentions):
        values = cache.layers[place].values[0].double()
        weight = model.model.layers[place].self_attn.o_proj.weight.double().detach()
        each = []
        for head, paid in enumerate(attentions[0].double()):
            v, size = values[head // groups], values.shape[-1]
            for i in range(n, n + len(piece)):
                part = weight[:, head * size : head * size + size]
                moved = ((v[:n] - paid[i] @ v) @ part.T).norm(dim=-1)
                a, x = paid[i, :n], out.hidden_states[place][0, i].double().norm()
                each.append(a / (1 - a).clamp_min(REST) * moved / x)
        yield torch.stack(each).view(len(values), groups, len(piece), n)


@pytest.mark.parametrize("chunk", [2048, 16], ids=["whole", "in pieces"])
def test_sums_and_maxima_are_of_a_second_reading(chunk):
    """Of prompt and piece in one pass, with the stream before each layer's norm."""
    model, inputs = eager("llama"), zoo.prompt("llama", lengths=(40,))
    layers = noted(model, inputs, ReadingDamage(chunk=chunk))
    pieces = [list(range(40))[at : at + chunk] for at in range(0, 40, chunk)]
    with other_side():
        again = [list(literal_damage(model, inputs["input_ids"], piece)) for piece in pieces]
    for layer, *of_pieces in zip(layers, *again, strict=True):
        total = sum(d.square().sum((1, 2)) for d in of_pieces)
        most = torch.stack([d.amax((1, 2)) for d in of_pieces]).amax(0)
        state = {name: t[0].double() for name, t in layer.state.items()}
        assert_close(state["sum"], total, rtol=1e-3, atol=1e-6)
        assert_close(state["most"].sqrt(), most, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("over", ["prompt", "piece"])
def test_kvzip_by_damage_adds_the_squares_up(over):
    model, inputs = zoo.build("llama"), zoo.prompt("llama", lengths=(40,))
    layers = noted(model, inputs, Reconstruction(by="damage", over=over, chunk=16))
    expected = noted(model, inputs, ReadingDamage(chunk=16))
    for layer, other in zip(layers, expected, strict=True):
        near = [torch.allclose(layer.state[NOTED], other.state["sum"], rtol=1e-4)]
        assert near == [over == "prompt"]
    for lengths in ((40,), (23, 31, 40)):
        policy = foveate.kvzip(budget="40%", by="damage", over=over)
        check_generate(model, policy, zoo.prompt("llama", lengths=lengths))


def test_a_pair_is_worth_the_mean_of_the_logarithms():
    layer, generator = random_layer((7,)), torch.Generator().manual_seed(4)
    s, m, f = (torch.rand(layer.pos.shape, generator=generator) for _ in range(3))
    s[..., 0], f[..., 4:] = 0.0, UNASKED
    found = worth(replace(layer, state={"sum": s, "most": m, "answers": f}))
    for head in range(2):
        for pair in range(7):
            logs = [
                max(float(t[0, head, pair]), LEAST**2) for t in (s, m, f) if t[0, head, pair] >= 0
            ]
            mean = sum(torch.tensor(one).log().item() / 2 for one in logs) / len(logs)
            assert_close(found[0, head, pair].item(), mean, rtol=1e-5, atol=1e-5)
    paid = {"reconstruction": m}
    assert_close(worth(replace(layer, state=paid)), m.clamp_min(LEAST).log())
