"""Every way to use a cache equals the full cache with the evicted positions masked."""

import os
import subprocess
import sys

import pytest
import torch
from transformers import DynamicCache

import foveate
from foveate.errors import UnsupportedCache
from foveate.hf.model.internals import CACHE
from tests import zoo
from tests.jitter import other_side
from tests.pairs import by_turns

from .compare import GREEDY, TOLERANCE, check_generate, difference, difference_while_certain
from .oracle import event_of, oracle
from .policies import LAYER_SCOPE, RANDOM

BATCHES = {"alone": (40,), "left-padded": (23, 31, 40)}
ANSWER = 4

BEAMS = {"3 beams": {"num_beams": 3}, "2 of 2 beams": {"num_beams": 2, "num_return_sequences": 2}}
# Families and policies meet in test_families.py. Where what a mode does is done to the decoder, of
# families that share one and count positions alike, one meets it here.
ALIKE = {"llava_next", "llava_onevision", "idefics3", "smolvlm", "mistral", "qwen2"}
DECODERS = [family for family in zoo.FAMILIES if family not in ALIKE]


@by_turns(family=DECODERS, policy=RANDOM, how=BEAMS)
def test_beam_search(family, policy, how):
    check_generate(zoo.build(family), policy, zoo.prompt(family, lengths=(23, 31)), **how)


@by_turns(family=["llama", "llava", "qwen2_5_vl"], policy=RANDOM)
def test_several_sampled_answers(family, policy):
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=(31, 40))
    how = {**GREEDY, "do_sample": True, "num_return_sequences": 3}
    with foveate.compress(model, policy) as session:
        torch.manual_seed(3)
        ours = model.generate(**inputs, **how)
        event = event_of(session.cache)
    with oracle(model, event):
        torch.manual_seed(3)
        theirs = model.generate(**inputs, **how)
    assert difference(ours, theirs) <= TOLERANCE


ENDS = {**GREEDY, "eos_token_id": 1}  # on 5.4, prompt lookup fails where nothing ends answers


def lookup_prompt(family):
    """A prompt that repeats itself, so that prompt lookup finds candidates at once."""
    inputs = zoo.prompt(family, lengths=(30,))
    tail = inputs["input_ids"][:, -6:]
    return zoo.append(family, inputs, torch.cat([tail, tail], 1))


# Mllama's own cross-attention mask has a fixed number of queries: the stock model fails here.
@by_turns(1, family=[f for f in DECODERS if f != "mllama"], policy=LAYER_SCOPE)
def test_prompt_lookup_decoding_gives_what_plain_decoding_gives(family, policy):
    model, inputs = zoo.build(family), lookup_prompt(family)
    if limit := zoo.drafts_limit(family):
        pytest.skip(limit)
    with foveate.compress(model, policy) as session:
        plain = model.generate(**inputs, **ENDS)
        event = event_of(session.cache)
        with other_side():
            looked_up = model.generate(**inputs, **ENDS, prompt_lookup_num_tokens=4)
        assert all(torch.equal(a, event.kept[i]) for i, a in event_of(session.cache).kept.items())
    assert difference(looked_up, plain) <= TOLERANCE
    with oracle(model, event):
        theirs = model.generate(**inputs, **ENDS)
    assert difference(looked_up, theirs) <= TOLERANCE


@by_turns(2, family=zoo.FAMILIES, policy=LAYER_SCOPE, lengths=BATCHES)
def test_tokens_that_come_with_the_prompt_see_what_is_kept_of_it(family, lengths, policy):
    """Drafted tokens arrive in the prompt's own pass, and still see the compressed prompt."""
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=lengths)
    drafts = torch.randint(zoo.TEXT_FROM, zoo.VOCAB, (len(lengths), 4))
    longer, end = zoo.append(family, inputs, drafts), max(lengths)
    if family == "paligemma":  # one piece of text is one prefix: what follows it is not
        longer["token_type_ids"][:, end:] = 1
    with foveate.compress(model, policy) as session:
        session.expect(tokens=end)
        ours = model(**longer).logits[:, end:]
        event = event_of(session.cache)
    with oracle(model, event):
        theirs = model(**longer).logits[:, end:]
    assert float((ours - theirs).abs().max()) <= TOLERANCE


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"])
def test_a_context_keeps_its_own_positions_when_another_is_read_in_between(family):
    """These models note the offset of the latest prompt's positions on themselves."""
    model = zoo.build(family)
    first, second = zoo.prompt(family), zoo.prompt(family, lengths=(60,), images=2, seed=5)
    question = zoo.extend(family, first, new_text=5).cached
    del question["position_ids"]  # left to the model
    with foveate.compress(model, RANDOM["dense"]) as session:
        context = session.prefill(**first)
        offset = model.model.rope_deltas.clone()
        expected = model.generate(**question, **{CACHE: session.fork(context)}, **GREEDY)
        token = question["input_ids"][:, -1:]  # in a loop of the caller's own
        stepped = model(input_ids=token, **{CACHE: session.fork(context)}).logits
        session.prefill(**second)
        assert not torch.equal(model.model.rope_deltas, offset)
        again = model(input_ids=token, **{CACHE: session.fork(context)}).logits
        session.prefill(**second)
        answer = model.generate(**question, **{CACHE: session.fork(context)}, **GREEDY)
    assert difference(answer, expected) == 0
    assert torch.equal(again, stepped)


def test_drafts_are_refused_where_the_budget_spans_all_layers():
    model, inputs = zoo.build("llama"), lookup_prompt("llama")
    with (
        foveate.compress(model, RANDOM["ragged, all layers together"]),
        pytest.raises(UnsupportedCache, match="without assisted"),
    ):
        model.generate(**inputs, **ENDS, prompt_lookup_num_tokens=4)


@pytest.mark.parametrize("policy", ["dense", "ragged, quantised"])
def test_assisted_decoding_gives_what_plain_decoding_gives(policy):
    model, inputs = zoo.build("llama"), zoo.prompt("llama")
    how = {**GREEDY, "max_new_tokens": 12, "logits_processor": None}  # drawn, all would be right
    with foveate.compress(model, RANDOM[policy]):
        plain = model.generate(**inputs, **how)
        # drafts with the uncompressed model: right at first, then cropped again and again
        with other_side():
            drafted = model.generate(**inputs, **how, assistant_model=zoo.fresh("llama"))
    assert difference_while_certain(drafted, plain) <= TOLERANCE


@by_turns(3, family=DECODERS, policy=RANDOM)
def test_a_prompt_in_chunks_equals_the_prompt_in_one_piece(family, policy):
    images = None if family in zoo.TEXT_FAMILIES else 0
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=(23, 31, 40), images=images)
    if limit := zoo.chunks_limit(family):
        pytest.skip(limit)
    whole = check_generate(model, policy, inputs)
    with foveate.compress(model, policy) as session:
        ours = model.generate(**inputs, **GREEDY, prefill_chunk_size=7)
        chunked = event_of(session.cache)
    assert all(torch.equal(chunked.kept[i], kept) for i, kept in whole.kept.items())
    with oracle(model, whole):
        theirs = model.generate(**inputs, **GREEDY, prefill_chunk_size=7)
    assert difference(ours, theirs) <= TOLERANCE


@by_turns(
    4,
    family=zoo.FAMILIES,
    policy=RANDOM,
    lengths=BATCHES,
    again={"kept whole": False, "compressed again": True},
)
def test_second_turn_with_a_new_image(family, lengths, policy, again):
    model, first = zoo.build(family), zoo.prompt(family, lengths=lengths)
    vision = family in zoo.VLM_FAMILIES
    with foveate.compress(model, policy) as session:
        answer = model.generate(**first, **{**GREEDY, "max_new_tokens": ANSWER})
        cache, events = answer[CACHE], [event_of(session.cache)]
        told = zoo.append(family, first, answer.sequences[:, -ANSWER:])
        turn = zoo.extend(family, told, new_text=24, images=int(vision)).cached
        if again:
            session.rearm(cache)
        ours = model.generate(**turn, **{CACHE: cache}, **GREEDY)
        if again:
            events.append(event_of(cache))
            assert events[1].end == turn["input_ids"].shape[1]
    stock = DynamicCache(config=model.config)
    with oracle(model, *events):
        model.generate(**first, **{CACHE: stock}, **{**GREEDY, "max_new_tokens": ANSWER})
        theirs = model.generate(**turn, **{CACHE: stock}, **GREEDY)
    assert difference(ours, theirs) <= TOLERANCE


@by_turns(5, family=DECODERS, policy=RANDOM)
def test_one_context_serves_several_questions(family, policy):
    """Compressed once, forked for every question, and nothing of one question reaches another."""
    model, context = zoo.build(family), zoo.prompt(family, lengths=(23, 31))
    with foveate.compress(model, policy) as session:
        cache = session.prefill(**context)
        seen = cache.get_seq_length()
        for seed in (1, 2, 1):
            question = zoo.extend(family, context, new_text=6, seed=seed).cached
            ours = model.generate(**question, **{CACHE: session.fork(cache)}, **GREEDY)
            with foveate_paused(session), oracle(model, event_of(cache)):
                stock = DynamicCache(config=model.config)
                model(**context, **{CACHE: stock})
                theirs = model.generate(**question, **{CACHE: stock}, **GREEDY)
            assert difference(ours, theirs) <= TOLERANCE
            assert cache.get_seq_length() == seen


class foveate_paused:
    """Leaves a block for a moment, so that the stock model can run."""

    def __init__(self, session):
        self.session = session

    def __enter__(self):
        self.session.__exit__(None, None, None)

    def __exit__(self, *_):
        self.session.__enter__()


@by_turns(
    family=["llava", "internvl", "qwen2_vl", "llama"],
    policy=RANDOM,
    how={"greedy": {}, "beams": {"num_beams": 2}},
)
def test_a_prompt_of_embeddings(family, policy, how):
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=(23, 40), images=0)
    ids = inputs.pop("input_ids")
    embedded = {
        "attention_mask": inputs["attention_mask"],
        "inputs_embeds": model.get_input_embeddings()(ids),
    }
    vision = torch.zeros_like(ids, dtype=torch.bool)
    vision[:, 20:30] = True
    with foveate.compress(model, policy, vision=vision) as session:
        ours = model.generate(**embedded, **GREEDY, **how)
        event = event_of(session.cache)
        layer = session.cache.layers[0]
        rows = 2 * how.get("num_beams", 1)
        seen = layer.state.images()[0][:, :40] >= 0
        assert torch.equal(seen, vision.repeat_interleave(rows // 2, 0))
    with oracle(model, event):
        theirs = model.generate(**embedded, **GREEDY, **how)
    assert difference(ours, theirs) <= TOLERANCE


READER = """
import sys, torch, foveate
from pathlib import Path
from tests import zoo
from tests.conformance.compare import GREEDY
from tests.conformance.policies import RANDOM
for path in map(Path, sys.argv[1:]):
    family, name, _ = path.name.split(".")
    model = zoo.build(family)
    question = zoo.extend(family, zoo.prompt(family, lengths=(23, 31)), new_text=6, seed=1).cached
    with foveate.compress(model, RANDOM[name]) as session:
        cache = session.load(path)
        path.write_bytes(b"")  # what was read no longer needs its file
        answer = model.generate(**question, past_key_values=cache, **GREEDY)
        torch.save(answer.logits, path.with_suffix(".pt"))
"""


def test_a_saved_context_is_read_by_another_process(tmp_path):
    names = ("dense", "ragged", "dense, quantised", "ragged, quantised")
    said = {}
    for family, name in zip(("llama", "qwen2_vl", "gemma3", "mllama"), names, strict=True):
        model, context = zoo.build(family), zoo.prompt(family, lengths=(23, 31))
        question = zoo.extend(family, context, new_text=6, seed=1).cached
        with foveate.compress(model, RANDOM[name]) as session:
            cache = session.prefill(**context)
            path = session.save(tmp_path / f"{family}.{name}.safetensors")
            said[path] = model.generate(**question, cache=cache, **GREEDY).logits
    path = os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}  # threads, as here
    subprocess.run([sys.executable, "-c", READER, *said], check=True, env=environment)
    for path, ours in said.items():
        theirs = torch.load(path.with_suffix(".pt"))
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)), path.name
