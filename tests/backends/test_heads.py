"""Scores of heads, against a greedy loop over the model's own attention weights."""

from __future__ import annotations

import copy

import pytest
import torch

import foveate
from foveate.errors import InvalidInput
from tests import zoo
from tests.answers import certain
from tests.conformance.compare import TOLERANCE
from tests.jitter import other_side

LAYERS, QUERY_HEADS, KV_HEADS = 3, 4, 2
STEPS = 6


class Words:
    """A tokenizer whose tokens are the words w0, w1, ... of two letters."""

    def decode(self, tokens, *, skip_special_tokens):
        return "".join(f" w{chr(97 + token % 26)}" for token in tokens)

    def encode(self, text, *, add_special_tokens):
        return text.split()


@torch.no_grad()
def answered(model, inputs, steps=STEPS):
    """The tokens of a greedy answer, and for each the attention [layer][hq][n] it came from."""
    eager = model.__class__(copy.deepcopy(model.config))
    eager.load_state_dict(model.state_dict())
    eager.eval().set_attn_implementation("eager")
    ids, given, found, logits = inputs["input_ids"], dict(inputs), [], []
    for _ in range(steps):
        out = eager(**given, output_attentions=True)
        logits.append(out.logits[0, -1])
        found.append((int(logits[-1].argmax()), [a[0, :, -1] for a in out.attentions]))
        ids = torch.cat([ids, torch.tensor([[found[-1][0]]])], 1)
        given |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if certain(logits) < steps:
        pytest.skip("on another CPU this model may say something else")
    return found


def visual_by_hand(found, spans):
    """SparseMM, algorithm 1: the largest attention of the row that a token came from."""
    total = torch.zeros(LAYERS, QUERY_HEADS)
    for token, layers in found:
        word = Words().decode([token], skip_special_tokens=True).strip()
        places = [where for text, where in spans if word in text]
        if len(places) != 1:
            continue
        for i, attention in enumerate(layers):
            for head, row in enumerate(attention):
                if int(row.argmax()) in places[0]:
                    total[i, head] += 1 / len(places[0])
    return total


def retrieval_by_hand(found, spans):
    """HeadKV-R2: of as many best places as there is evidence, what is paid to it."""
    evidence = [place for _, where in spans for place in where]
    total = torch.zeros(LAYERS, QUERY_HEADS)
    for _, layers in found:
        for i, attention in enumerate(layers):
            for head, row in enumerate(attention.tolist()):
                best = sorted(range(len(row)), key=lambda place: -row[place])[: len(evidence)]
                total[i, head] += sum(row[p] for p in best if p in evidence) / len(evidence)
    return total


def sample(family, seed, method):
    """A prompt whose spans show, and whose answer is, what the model will say."""
    model = zoo.build(family)
    images = None if family == "llama" else 1
    inputs = zoo.prompt(family, lengths=(30 + seed,), images=images, seed=seed)
    with other_side():
        found = answered(model, inputs)
    words = [Words().decode([token], skip_special_tokens=True) for token, _ in found]
    # halves of the prompt: whatever a head looks at is in one of them
    spans = [("".join(words[:3]), range(0, 20)), ("".join(words[3:]), range(20, 30 + seed))]
    by_hand = visual_by_hand if method == "sparsemm" else retrieval_by_hand
    return foveate.Shown(inputs, spans, "".join(words)), by_hand(found, spans)


def of_kv_heads(scores):
    return scores.view(LAYERS, KV_HEADS, -1).mean(-1)


@pytest.mark.parametrize("method", ["sparsemm", "headkv"])
@pytest.mark.parametrize("family", ["llama", "llava"])
def test_heads_are_scored_as_the_attention_weights_say(family, method):
    samples, expected = zip(*(sample(family, seed, method) for seed in (1, 2)), strict=True)
    profile = foveate.calibrate_heads(zoo.build(family), method, samples, Words())
    mean = of_kv_heads(torch.stack(expected).mean(0))
    assert float(mean.max()) > 0
    torch.testing.assert_close(torch.tensor(profile.by_layer), mean, atol=TOLERANCE, rtol=1e-4)
    assert (profile.method, profile.layers, profile.samples) == (method, LAYERS, 2)


@pytest.mark.parametrize("method", ["sparsemm", "headkv"])
def test_the_profile_is_one_that_its_method_takes(method, tmp_path):
    one, _ = sample("llava", 1, method)
    model = zoo.build("llava")
    path = foveate.calibrate_heads(model, method, [one], Words()).save(tmp_path / "heads.json")
    # heads of random weights retrieve nearly alike: their differences are raised to a power
    sharp = {"temperature": 8.0} if method == "headkv" else {}
    policy = foveate.METHODS[method](budget="50%", window=4, profile=str(path), **sharp)
    with foveate.compress(model, policy) as session:
        session.prefill(**one.inputs)
        counts = [kept.flatten().tolist() for kept in session.stats.kept]
    assert sum(map(sum, counts)) == 15 * LAYERS * KV_HEADS
    assert len({count for layer in counts for count in layer}) > 1


def test_a_token_that_stands_in_two_texts_or_in_none_does_not_count():
    one, by_hand = sample("llama", 1, "sparsemm")
    texts = [text for text, _ in one.spans]
    twice = foveate.Shown(one.inputs, [*one.spans, (texts[0], range(5))], one.answer)
    half = visual_by_hand(answered(zoo.build("llama"), one.inputs), twice.spans)
    assert float(half.sum()) < float(by_hand.sum())
    profile = foveate.calibrate_heads(zoo.build("llama"), "sparsemm", [twice], Words())
    torch.testing.assert_close(torch.tensor(profile.by_layer), of_kv_heads(half))
    none = foveate.Shown(one.inputs, [("nothing", range(5))], one.answer)
    with pytest.raises(InvalidInput, match=r"no head attended .* in any of the 1 sample"):
        foveate.calibrate_heads(zoo.build("llama"), "sparsemm", [none], Words())


def test_an_answer_that_is_mostly_wrong_does_not_count():
    right, _ = sample("llama", 1, "headkv")
    wrong = foveate.Shown(right.inputs, right.spans, "x " * STEPS)
    both = foveate.calibrate_heads(zoo.build("llama"), "headkv", [wrong, right], Words())
    alone = foveate.calibrate_heads(zoo.build("llama"), "headkv", [right], Words())
    assert both == alone
    with pytest.raises(InvalidInput, match="none of the 1 samples was answered well enough"):
        foveate.calibrate_heads(zoo.build("llama"), "headkv", [wrong], Words())


def broken_off(samples, after):
    yield from samples[:after]
    raise KeyboardInterrupt


def test_a_measurement_goes_on_where_it_was_broken_off(tmp_path, monkeypatch):
    model, path = zoo.fresh("llama"), tmp_path / "heads.part"
    samples = [sample("llama", seed, "headkv")[0] for seed in (1, 2, 3)]
    whole = foveate.calibrate_heads(model, "headkv", samples, Words())
    with pytest.raises(KeyboardInterrupt):
        foveate.calibrate_heads(model, "headkv", broken_off(samples, 2), Words(), progress=path)
    with path.open("a") as file:
        file.write('["cut sho')
    answers, generate = [], model.generate
    monkeypatch.setattr(model, "generate", lambda **k: answers.append(1) or generate(**k))
    again = foveate.calibrate_heads(model, "headkv", samples, Words(), progress=path)
    assert again == whole
    assert len(answers) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_another_measurement_is_refused(tmp_path):
    model, path = zoo.build("llama"), tmp_path / "heads.part"
    samples = [sample("llama", seed, "headkv")[0] for seed in (1, 2)]
    with pytest.raises(KeyboardInterrupt):
        foveate.calibrate_heads(model, "headkv", broken_off(samples, 1), Words(), progress=path)
    with pytest.raises(InvalidInput, match=r"another measurement.*or delete the file"):
        foveate.calibrate_heads(model, "sparsemm", samples, Words(), progress=path)
    with pytest.raises(InvalidInput, match="sample 1 is another one"):
        foveate.calibrate_heads(model, "headkv", samples[::-1], Words(), progress=path)


def test_prompts_of_other_profiles_are_not_read_again_either(tmp_path, monkeypatch):
    model, path = zoo.build("llama"), tmp_path / "mixkv.part"
    prompts = [zoo.prompt("llama", lengths=(30,), seed=seed) for seed in range(3)]
    whole = foveate.calibrate(model, "mixkv:budget=20,window=4", prompts)
    with pytest.raises(KeyboardInterrupt):
        foveate.calibrate(model, "mixkv:budget=20,window=4", broken_off(prompts, 2), progress=path)
    read, prefill = [], foveate.Session.prefill
    monkeypatch.setattr(
        foveate.Session, "prefill", lambda self, **k: read.append(1) or prefill(self, **k)
    )
    again = foveate.calibrate(model, "mixkv:budget=20,window=4", prompts, progress=path)
    assert again == whole
    assert len(read) == 1
    assert not path.exists()


@pytest.mark.parametrize(
    ("spans", "says"), [([], "have no tokens"), ([("a", [99])], "outside of the prompt's 31")]
)
def test_spans_outside_of_the_prompt_are_refused(spans, says):
    one, _ = sample("llama", 1, "headkv")
    with pytest.raises(InvalidInput, match=says):
        foveate.calibrate_heads(
            zoo.build("llama"), "headkv", [foveate.Shown(one.inputs, spans, "a")], Words()
        )


def test_methods_that_score_no_heads_and_batches_are_refused():
    model, pair = zoo.build("llama"), zoo.prompt("llama", lengths=(20, 20))
    with pytest.raises(InvalidInput, match=r"'snapkv' scores no heads\. Known: headkv, sparsemm"):
        foveate.calibrate_heads(model, "snapkv", [], Words())
    with pytest.raises(InvalidInput, match="a batch of 2 prompts"):
        foveate.calibrate_heads(model, "headkv", [foveate.Shown(pair, [("a", [1])], "a")], Words())
