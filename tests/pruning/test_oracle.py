"""A pruned prompt is the stock model with the dropped keys hidden where they were dropped."""

from dataclasses import replace

import pytest
import torch
from transformers import DynamicCache

import foveate
from foveate.hf.model.internals import CACHE
from tests import zoo
from tests.conformance.compare import GREEDY, TOLERANCE, difference
from tests.conformance.oracle import event_of, oracle
from tests.conformance.policies import KEEPING_LESS
from tests.pairs import by_turns, in_step

from .compare import BATCHES, check_pruned, hidden_of, in_chunks

FAMILIES = [
    "llava",
    "llava_next",
    "llava_onevision",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen3_vl_moe",
    "internvl",
    "idefics3",
    "smolvlm",
    "paligemma",
    "mobilevlm",
    "qwen_vl",
]
CUTS = {
    "at the door": "test_uneven.prune",
    "between": "test_uneven.prune(at=l1)",
    "twice": "test_uneven.prune(at=l012)",
    "a row loses all": "test_uneven.prune(all=true)",
    "chosen while reading": "fastv.prune(layer=1,keep=40%)",
    "random": "random.prune(keep=40%)",
}
BEHIND = {
    "held": "full",
    "dense": "snapkv:budget=60%,window=4",
    "ragged": "adakv:budget=60%,window=4",
    "running": "h2o:budget=60%",
    "merged": "lookm:budget=60%",
    "all layers": "vl_cache:budget=60%",
}
DECODING = {"while decoding": "prefixkv:budget=60%"}


@by_turns(family=FAMILIES, cut=CUTS, behind=BEHIND | DECODING, lengths=BATCHES)
def test_pruned_equals_the_stock_model_with_the_dropped_hidden(family, cut, behind, lengths):
    inputs = zoo.prompt(family, lengths=lengths)
    check_pruned(zoo.build(family), foveate.policy(f"{cut}+{behind}"), inputs)


# What is merged into the nearest by position is so by true positions, and by places in the oracle.
BY_POSITION = ("elastic_cache",)


@by_turns(
    name=[name for name in KEEPING_LESS if name not in BY_POSITION],
    cut=["at the door", "between"],
    family=["llava", "qwen2_5_vl", "paligemma"],
)
def test_every_method_behind_a_cut(name, cut, family):
    stage = foveate.policy(f"{CUTS[cut]}+full").prune
    policy = replace(KEEPING_LESS[name], prune=stage, origin=None)
    check_pruned(zoo.build(family), policy, zoo.prompt(family, lengths=(23, 31, 40)))


@by_turns(1, family=FAMILIES, cut=CUTS)
def test_eager_attention(family, cut):
    model = zoo.fresh(family)
    model.config.get_text_config(decoder=True)._attn_implementation_internal = "eager"
    check_pruned(model, foveate.policy(f"{cut}+full"), zoo.prompt(family, lengths=(23, 31, 40)))


KEEPING_ALL = [
    "random.prune(keep=100%)+full",
    "fastv.prune(layer=1,keep=100%)+full",
    "sparsevlm.prune(at=1|2,keep=100%)+full",
]


@by_turns(family=FAMILIES, policy=KEEPING_ALL)
def test_keeping_everything_is_bit_identical_to_the_stock_cache(family, policy):
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=(23, 31, 40))
    stock = model.generate(**inputs, **GREEDY)
    with foveate.compress(model, policy):
        ours = model.generate(**inputs, **GREEDY)
    assert all(torch.equal(a, b) for a, b in zip(ours.logits, stock.logits, strict=True))


@in_step(2, family=FAMILIES, cut=CUTS, behind=BEHIND)
def test_beams(family, cut, behind):
    inputs = zoo.prompt(family, lengths=(23, 31))
    check_pruned(zoo.build(family), foveate.policy(f"{cut}+{behind}"), inputs, num_beams=3)


@by_turns(3, family=FAMILIES, cut=CUTS, behind=["full", "h2o:budget=60%"])
def test_several_images(family, cut, behind):
    inputs = zoo.prompt(family, lengths=(60, 70), images=2)
    check_pruned(zoo.build(family), foveate.policy(f"{cut}+{behind}"), inputs)


@in_step(
    4,
    family=FAMILIES,
    cut=CUTS,
    behind={name: spec for name, spec in BEHIND.items() if name != "merged"},
    lengths=BATCHES,
    again={"kept whole": False, "pruned again": True},
)
def test_second_turn_with_a_new_image(family, cut, behind, lengths, again):
    model, first = zoo.build(family), zoo.prompt(family, lengths=lengths)
    said = {**GREEDY, "max_new_tokens": 4}
    with foveate.compress(model, f"{cut}+{behind}") as session:
        answer = model.generate(**first, **said)
        cache, events = answer[CACHE], [event_of(session.cache)]
        hidden = hidden_of(cache)
        turn = zoo.extend(
            family, zoo.append(family, first, answer.sequences[:, -4:]), new_text=24, images=1
        ).cached
        if again:
            session.rearm(cache)
        ours = model.generate(**turn, **{CACHE: cache}, **GREEDY)
        if again:
            events.append(event_of(cache))
            assert sum(map(_dropped, hidden_of(cache).values())) > sum(
                map(_dropped, hidden.values())
            )
            hidden = hidden_of(cache)
    stock = DynamicCache(config=model.config)
    with oracle(model, *events, hidden=hidden):
        model.generate(**first, **{CACHE: stock}, **said)
        theirs = model.generate(**turn, **{CACHE: stock}, **GREEDY)
    assert difference(ours, theirs) <= TOLERANCE


def _dropped(which):
    return int(which.sum())


def embedded(family, lengths=(23, 31, 40)):
    """A prompt of embeddings, and which of them are visual: a chunk is nothing else."""
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=lengths, images=0)
    ids = inputs["input_ids"]
    vision = torch.zeros_like(ids, dtype=torch.bool)
    vision[:, -17:-7] = True
    mask = inputs["attention_mask"]
    return (
        model,
        {"inputs_embeds": model.get_input_embeddings()(ids), "attention_mask": mask},
        vision,
    )


@in_step(5, family=["llava", "internvl", "mobilevlm", "smolvlm"], cut=CUTS, behind=BEHIND)
def test_chunks_of_which_one_is_all_visual(family, cut, behind):
    model, inputs, vision = embedded(family)
    question = torch.randint(zoo.TEXT_FROM, zoo.VOCAB, (3, 4))
    mask = torch.cat([inputs["attention_mask"], torch.ones_like(question)], dim=1)
    ends = (20, 24, 33, 36, 40)
    with foveate.compress(model, f"{cut}+{behind}", vision=vision) as session:
        cache = in_chunks(session, inputs, ends)
        event, hidden = event_of(cache), hidden_of(cache)
        ours = model(input_ids=question, attention_mask=mask, **{CACHE: cache}).logits
    assert 2 in hidden
    stock = DynamicCache(config=model.config)
    with oracle(model, event, hidden=hidden):
        model(**inputs, **{CACHE: stock})
        theirs = model(input_ids=question, attention_mask=mask, **{CACHE: stock}).logits
    assert float((ours - theirs).abs().max()) <= TOLERANCE


TAKING_OVER = {
    "merged": "visionzip.prune(keep=60%,contextual=0.4)",
    "recycled": "sparsevlm.prune(at=1|2,keep=50%|20%)",
}
NOTHING_EVICTED = {"softmax-n": "csp:budget=95%"}  # whose n is of what was evicted


@in_step(
    3,
    family=["llava", "qwen2_vl", "qwen3_vl"],
    cut={**CUTS, **TAKING_OVER},
    behind={**BEHIND, **NOTHING_EVICTED},
)
def test_saved_forked_and_fixed_caches_answer_alike(family, cut, behind, tmp_path):
    model, context = zoo.build(family), zoo.prompt(family, lengths=(23, 31))
    question = zoo.extend(family, context, new_text=1, seed=1).cached
    with foveate.compress(model, f"{cut}+{behind}") as session:
        cache = session.prefill(**context)
        path, computed = session.save(tmp_path / "context.safetensors"), session.computed_share()
        forked = model.generate(**question, **{CACHE: session.fork(cache)}, **GREEDY)
        held = session.load(path)
        assert torch.equal(session.computed_share(), computed)
        loaded = model.generate(**question, **{CACHE: held}, **GREEDY)
        assert difference(loaded, forked) == 0
        if foveate.policy(behind).when.decodes:
            return
        still = session.fixed(8, cache=cache)
        mask = question["attention_mask"]
        places = question.get("position_ids", mask.cumsum(-1) - 1)[..., -1:]
        step = {"input_ids": question["input_ids"][:, -1:], "attention_mask": mask}
        step["position_ids"] = places
        fixed = model(**step, **{CACHE: still}).logits[:, -1]
    assert float((fixed - forked.logits[0]).abs().max()) <= TOLERANCE


@pytest.mark.parametrize("cut", [CUTS["at the door"], CUTS["between"]])
def test_prompt_lookup_decoding_gives_what_plain_decoding_gives(cut):
    model, inputs = zoo.build("llava"), zoo.prompt("llava", lengths=(30,))
    tail = inputs["input_ids"][:, -6:]
    inputs = zoo.append("llava", inputs, torch.cat([tail, tail], 1))
    how = {**GREEDY, "eos_token_id": 1}
    with foveate.compress(model, f"{cut}+snapkv:budget=60%,window=4"):
        plain = model.generate(**inputs, **how)
        looked_up = model.generate(**inputs, **how, prompt_lookup_num_tokens=4)
    assert difference(looked_up, plain) <= TOLERANCE
