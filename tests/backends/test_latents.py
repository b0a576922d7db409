"""Caches of latents (MLA): exact in every type, as small as latents, and nothing expanded stays."""

import gc
import json
import weakref

import pytest
import torch
from safetensors import safe_open

import foveate
from foveate.errors import CacheMismatch, UnsupportedPolicy
from foveate.hf.layer.projection import with_latents
from foveate.hf.layer.support import foveate_layers
from foveate.hf.model.internals import CACHE
from foveate.hf.saving import cache_files
from foveate.memory import Request, fit
from tests import zoo
from tests.census.building import build
from tests.census.specimen import NotBuilt
from tests.census.verdicts import less, whole
from tests.chat.conversations import image
from tests.chat.families import talker
from tests.conformance.compare import check_generate
from tests.pairs import by_turns
from tests.profiles import saved

FAMILY = "llava_deepseek"
LATENT, ROTARY = 16, 8  # numbers per token of the family's cache
POLICY = "snapkv:budget=25%,window=4"

pytestmark = pytest.mark.skipif(
    not with_latents(zoo.build(FAMILY)), reason="this release caches keys and values per head"
)


@by_turns(name=["deepseek_v2", "deepseek_v3", "kimi_k25", "mistral4"], attention=["eager", "sdpa"])
def test_a_type_is_exact_under_every_attention(name, attention):
    try:
        specimen = build(name)
    except NotBuilt as reason:
        pytest.skip(str(reason))
    config = specimen.model.config.get_text_config(decoder=True)
    before = config._attn_implementation_internal
    config._attn_implementation_internal = attention
    try:
        images = min(1, specimen.takes_images)
        inputs = specimen.prompt((44, 60), images=images)
        whole(specimen, inputs, attention)
        less(specimen, inputs, attention, POLICY)
    finally:
        config._attn_implementation_internal = before


def test_bytes_are_those_of_latents():
    model, inputs = zoo.build(FAMILY), zoo.prompt(FAMILY, lengths=(40,))
    with foveate.compress(model, "snapkv:budget=10,window=4") as session:
        session.prefill(**inputs)
        token = (LATENT + ROTARY) * 4  # float32
        layers = len(session.stats.layers)
        assert session.stats.bytes_before == layers * 40 * token
        assert session.stats.bytes_after == layers * 10 * (token + 4)  # and a column
        assert [kept.tolist() for kept in session.stats.kept] == [[[10]]] * layers


@pytest.mark.parametrize(
    "spec", [POLICY, "h2o:budget=25%,when=over_budget", "recommended:budget=25%"]
)
def test_nothing_expanded_outlives_a_pass(spec, monkeypatch):
    """Not the keys and values of every head, which are many times as large as the latents."""
    model, inputs = zoo.fresh(FAMILY), zoo.prompt(FAMILY, lengths=(31, 40))
    made = []
    for module in with_latents(model).values():

        def expand(*latents, own=module.expand_kv):
            expanded = own(*latents)
            made.extend(map(weakref.ref, expanded))
            return expanded

        monkeypatch.setattr(module, "expand_kv", expand, raising=False)
    with torch.no_grad(), foveate.compress(model, spec) as session:
        cache = session.prefill(**inputs)
        gc.collect()
        assert made
        assert not [ref for ref in made if ref() is not None]
        model(input_ids=inputs["input_ids"][:, -1:], **{CACHE: cache})
        gc.collect()
        assert not [ref for ref in made if ref() is not None]


def test_stages_for_single_heads_are_refused_by_name(tmp_path):
    model = zoo.build(FAMILY)
    profile = saved(tmp_path, "headkv", [[1.0, 2.0, 3.0, 4.0]] * 3)
    for spec, instead in (
        ("adakv:budget=20%", "Leave adakv out"),
        ("think:budget=20%", "Use kivi"),
        ("cam:budget=20%", "Use lookm.merge"),
        (f"headkv:budget=20%,profile='{profile}'", "Use snapkv"),
        ("mixkv+adakv:budget=20%", "Leave adakv out"),
    ):
        with pytest.raises(UnsupportedPolicy, match=instead):
            foveate.compress(model, spec)


@pytest.mark.parametrize(
    "store", ["kivi(bits=4,group=4,residual=2)", "turboquant(bits=4,residual=2)"]
)
def test_stores_in_few_bits_keep_rotary_keys_exact(store, tmp_path):
    model, inputs = zoo.build(FAMILY), zoo.prompt(FAMILY, lengths=(40,))
    with foveate.compress(model, "snapkv:budget=20,window=4") as session:
        exact = [layer.pairs.padded() for layer in foveate_layers(session.prefill(**inputs))]
    with foveate.compress(model, f"snapkv(window=4)+{store}:budget=20") as session:
        cache = session.prefill(**inputs)
        for layer, stock in zip(foveate_layers(cache), exact, strict=True):
            coded = layer.pairs.padded()
            assert torch.equal(coded.columns, stock.columns)
            assert torch.equal(coded.v, stock.v)
            assert 0 < float((coded.k - stock.k).abs().max()) < 1.0
        bits = session.stats.layers[0].bits
        assert 4 < bits < 32
        path = session.save(tmp_path / "coded.safetensors")
        again = session.load(path)
        for layer, own in zip(foveate_layers(again), foveate_layers(cache), strict=True):
            assert all(map(torch.equal, layer.pairs.padded(), own.pairs.padded()))


def test_a_budget_in_bytes_counts_exact_rotary_keys():
    model, inputs = zoo.build(FAMILY), zoo.prompt(FAMILY, lengths=(40,))
    for spec in ("snapkv(window=4)+kivi(bits=4,residual=2):budget=4KB", "knorm:budget=4KB"):
        with foveate.compress(model, spec) as session:
            session.prefill(**inputs)
            assert 2048 < session.bytes_held <= 4096


def test_a_saved_file_says_what_it_holds(tmp_path, monkeypatch):
    model, inputs = zoo.build(FAMILY), zoo.prompt(FAMILY, lengths=(31, 40))
    with foveate.compress(model, POLICY) as session:
        cache = session.prefill(**inputs)
        path = session.save(tmp_path / "latents.safetensors")
        with safe_open(path, "pt") as file:
            assert file.metadata()["form"] == "latents"
            assert json.loads(file.metadata()["seen"])["0"][0] == 40
        loaded = session.load(path)
        token = {"input_ids": inputs["input_ids"][:, -1:]}
        with torch.no_grad():
            ours = model(**token, **{CACHE: loaded}).logits
            assert torch.equal(ours, model(**token, **{CACHE: cache}).logits)
        monkeypatch.setattr(cache_files, "with_latents", lambda _: {})  # an older release
        with pytest.raises(CacheMismatch, match="holds latents"):
            session.load(path)


@pytest.mark.parametrize("method", ["recommended", "kvzap", "triattention", "q_filters"])
def test_a_profile_is_measured_and_used(method, tmp_path):
    """Its maps read the keys and values of every head, with their rotation."""
    model, inputs = zoo.build(FAMILY), zoo.prompt(FAMILY, lengths=(23, 31, 40))
    texts = [zoo.prompt(FAMILY, lengths=(40,), images=0, seed=seed) for seed in (1, 2)]
    profile = foveate.calibrate(model, method, texts)
    path = profile.save(tmp_path / f"{method}.safetensors")
    check_generate(model, foveate.policy(f"{method}:budget=40%,profile='{path}'"), inputs)


def test_fit_counts_latents_and_their_expansion(tmp_path):
    """Before any weight is loaded: bytes of a token, and what a decoding step expands."""
    zoo.build(FAMILY).config.save_pretrained(tmp_path)
    asked = Request(text=400, answer=8)
    found = fit(str(tmp_path), asked, 10**9, dtype="float32", policies=("kivi", "adakv:budget=20%"))
    layers = len(found.trace.forms)
    assert {form[0] * form.pair for form in found.trace.forms.values()} == {(LATENT + ROTARY) * 4}
    assert found.caches[0].cache.prompt == found.trace.tokens * layers * (LATENT + ROTARY) * 4
    expanded = found.trace.tokens * 4 * (24 + 16) * 4  # heads, key and value, float32
    assert found.trace.step - found.trace.cache > expanded
    coded, refused = found.caches[1:]
    assert coded.cache.prompt < found.caches[0].cache.prompt
    assert "all heads of a layer share" in refused.unknown


def test_a_chat_goes_on_after_undo_and_load(tmp_path):
    """Turns with images, over stored latents and rotary keys."""
    processor = talker("llava").processor
    mine = foveate.Chat(zoo.build(FAMILY), processor, "snapkv:budget=30%,window=4")
    short = {"max_new_tokens": 3, "do_sample": False}
    first = mine.say("What is this?", images=[image(0)], **short)
    then = mine.say("And this?", images=[image(1)], **short)
    mine.undo()
    assert mine.say("And this?", images=[image(1)], **short).text == then.text
    mine.save(tmp_path / "chat")
    again = foveate.Chat.load(tmp_path / "chat", zoo.build(FAMILY), processor)
    assert again.say("Why?", **short).text == mine.say("Why?", **short).text
    assert first.text
    assert mine.held.bytes == again.held.bytes
