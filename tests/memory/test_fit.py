"""What ``fit`` says of a tiny model is what that model holds."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from transformers import CONFIG_MAPPING, DynamicCache

import foveate
from foveate.errors import InvalidInput
from foveate.hf import compress
from foveate.hf.model.internals import CACHE
from foveate.memory import Engine, Request, cache, fit, frames_of, seconds_of, size_of
from foveate.memory.cache import pool
from foveate.memory.model import Bare, bare, in_four_bits, weights
from foveate.memory.processors.inputs import prompt, video
from foveate.memory.request import Unknown
from foveate.memory.trace import pruned, trace
from foveate.policies.prunes import PRUNES, prunes
from foveate.policies.pruning import EnteringTokens, Pruned
from tests import zoo

from .test_counting import WORKSPACE, allocated

ASKED = Request(images=2, size=(40, 30), text=120, answer=8)
GB = 10**9
STORES = (
    "snapkv:budget=20%",
    "snapkv:budget=50",
    "pyramidkv:budget=30%",
    "kivi",
    "turboquant:bits=3",
    "turboquant:bits=4,sketch=true,residual=5",
    "snapkv+turboquant(bits=2):budget=20%",
    "star_kv:budget=20%",
    "snapkv:budget=9KB",
)


@pytest.fixture(scope="session")
def made(llava: Path) -> Bare:
    return bare(str(llava), "float32")


@prunes("test_third")
@dataclass(frozen=True, kw_only=True)
class EveryThird:
    """Does not say how many go on."""

    def layers(self, depth: int) -> tuple[int, ...]:
        return (0,)

    def __call__(self, tokens: EnteringTokens) -> Pruned:
        return Pruned(tokens.vision & (tokens.spot % 3 == 0))


def read(made: Bare, asked: Request) -> zoo.Inputs:
    """The prompt with its pixels, for the model that has numbers."""
    given = prompt(made, asked, 9)
    return given | {"pixel_values": torch.randn(asked.images * asked.batch, 3, 12, 12)}


def test_weights_tokens_and_cache_are_the_models(made: Bare) -> None:
    model, found = zoo.build("llava"), trace(made, ASKED)
    held = {id(one): one.nbytes for one in (*model.parameters(), *model.buffers())}
    assert weights(made).bytes == sum(held.values())
    kept = DynamicCache(config=model.config.get_text_config())
    given = read(made, ASKED)
    with torch.no_grad():
        model(**given, **{CACHE: kept})
    assert (found.tokens, found.visual) == (given["input_ids"].shape[1], 18)
    assert list(found.layers) == [one.keys.nbytes + one.values.nbytes for one in kept.layers]


@pytest.mark.parametrize("batch", [1, 3])
def test_both_peaks_together_are_the_allocators(made: Bare, batch: int) -> None:
    model, asked = zoo.build("llava"), replace(ASKED, batch=batch)
    given, found = read(made, asked), trace(made, asked)
    real = allocated(lambda: model(**given, logits_to_keep=1))
    pixels = given["pixel_values"].nbytes
    assert max(found.tower, found.prefill) - pixels == pytest.approx(real, rel=0.01)


def test_chunks_are_the_allocators(made: Bare) -> None:
    model, asked = zoo.build("llava"), Request(text=400, chunk=64)
    kept = DynamicCache(config=model.config.get_text_config())

    def chunks() -> None:
        embeds = torch.zeros(1, 400, model.config.get_text_config().hidden_size)
        for start in range(0, 400, 64):
            part = embeds[:, start : start + 64]
            model(inputs_embeds=part, **{CACHE: kept}, logits_to_keep=1)

    found, real = trace(made, asked).prefill, allocated(chunks)
    assert real - WORKSPACE * torch.get_num_threads() <= found <= real
    assert found < trace(made, replace(asked, chunk=None)).prefill


@pytest.mark.parametrize("spec", STORES)
@pytest.mark.parametrize("batch", [1, 2])
def test_a_policys_bytes_are_those_that_a_block_holds(made: Bare, spec: str, batch: int) -> None:
    model, asked = zoo.fresh("llava"), replace(ASKED, batch=batch)
    policy = foveate.policy(spec)
    found = cache.under(policy, trace(made, asked), asked)
    with compress(model, policy) as session:
        session.prefill(**read(made, asked))
    assert found.prompt == session.stats.bytes_after


def test_a_rule_that_decodes_has_the_room_that_it_may_fill(made: Bare) -> None:
    model, policy = zoo.fresh("llava"), foveate.policy("h2o:budget=20%,when=over_budget(every=4)")
    found = cache.under(policy, trace(made, ASKED), ASKED)
    with compress(model, policy) as session:
        model.generate(**read(made, ASKED), max_new_tokens=ASKED.answer, min_new_tokens=8)
    assert session.bytes_held <= found.answer < 1.2 * session.bytes_held


def test_what_follows_from_scores_is_unknown(made: Bare) -> None:
    with pytest.raises(Unknown, match="follows from the scores"):
        cache.under(foveate.policy("snapkv:budget=auto(0.9)"), trace(made, ASKED), ASKED)


def test_each_change_leaves_the_peak_that_fit_finds_with_it(
    llava: Path, request: pytest.FixtureRequest
) -> None:
    asked = replace(ASKED, text=700, attention="eager", batch=2)
    found = fit(str(llava), asked, GB, dtype="float32", policies=["snapkv:budget=10%"])
    assert [one.saves for one in found.changes] == sorted(
        (one.saves for one in found.changes), reverse=True
    )
    said = {one.option: one.peak for one in found.changes}
    request.getfixturevalue("no_changes")
    for option, other in (
        ("--attn sdpa", replace(asked, attention="sdpa")),
        ("--batch 1", replace(asked, batch=1)),
    ):
        assert said[option] == fit(str(llava), other, GB, dtype="float32", policies=[]).peak
    assert found.peak is not None
    assert found.fits
    assert fit(str(llava), asked, found.peak - 1, dtype="float32", policies=[]).fits is False


def test_half_the_precision_is_tried_too(llava: Path, request: pytest.FixtureRequest) -> None:
    found = fit(str(llava), ASKED, GB, dtype="float32", policies=[])
    request.getfixturevalue("no_changes")
    half = fit(str(llava), ASKED, GB, dtype="bfloat16", policies=[])
    said = {one.option: one.peak for one in found.changes}
    assert said["--dtype bfloat16"] == pytest.approx(half.peak, rel=1e-3)  # but for RoPE's numbers


def test_the_pool_holds_as_many_requests_as_fit_one_by_one(made: Bare) -> None:
    asked = replace(ASKED, text=600)
    traced, policy = trace(made, asked), foveate.policy("snapkv:budget=20%,window=8")
    form, layers = next(iter(traced.forms.values())), len(traced.forms)
    block = 32 * form.heads * form.pair * layers
    engine = Engine(utilisation=0.5, block=32)
    found = pool(engine, 2 * (1000 + 100 * block), 1000, traced, asked, [policy])
    whole = -(-(traced.tokens + asked.answer) // 32)
    kept = traced.tokens - traced.tokens // 5
    held = whole - kept // 32
    assert found.tokens == 100 * 32
    count = 0
    while count * held + whole <= 100:
        count += 1
    assert [one.requests for one in found.served] == [100 // whole, count]
    assert count > 2 * (100 // whole)


def test_codes_are_weighed_with_their_scales(made: Bare, monkeypatch: pytest.MonkeyPatch) -> None:
    last = made.model.get_output_embeddings()
    linear = [
        one.weight
        for one in made.model.modules()
        if isinstance(one, torch.nn.Linear) and one is not last
    ]
    spared = sum(4 * one.numel() - one.numel() // 2 - 4 * (one.numel() // 64) for one in linear)
    assert in_four_bits(made.model) == weights(made).bytes - spared
    blocks = [-(-one.shape[0] // 16) * -(-one.shape[1] // 16) for one in linear]
    spared = sum(3 * one.numel() for one in linear) - 4 * sum(blocks)
    whole = weights(made).bytes
    told = {"quant_method": "fp8", "weight_block_size": [16, 16]}
    with monkeypatch.context() as patch:
        patch.setattr(made.config, "quantization_config", told, raising=False)
        assert weights(made).bytes == whole - spared
        patch.setattr(made.config, "quantization_config", {"quant_method": "own"})
        with pytest.raises(Unknown, match="quantises weights by own"):
            weights(made)


@pytest.mark.usefixtures("no_changes")
def test_without_a_processor_images_are_unknown_and_text_is_not(tmp_path: Path) -> None:
    zoo.build("llava").config.save_pretrained(tmp_path)
    found = fit(str(tmp_path), ASKED, GB, dtype="float32")
    assert found.weights is not None
    assert (found.trace, found.fits) == (None, None)
    assert "preprocessor_config.json" in found.unknown["tower, prefill and cache"]
    assert fit(str(tmp_path), Request(), GB, dtype="float32").fits


def test_windows_hold_the_whole_prompt_until_an_answer_begins(tmp_path: Path) -> None:
    model = zoo.build("gemma3")
    model.config.save_pretrained(tmp_path)
    traced = trace(bare(str(tmp_path), "float32"), Request(text=100))
    held = DynamicCache(config=model.config.get_text_config())

    def storages() -> list[int]:
        layers = ((one.keys, one.values) for one in held.layers)
        return [sum(t.untyped_storage().nbytes() for t in pairs) for pairs in layers]

    ids = torch.ones(1, 100, dtype=torch.long)
    types = torch.zeros_like(ids)
    with torch.no_grad():
        model(input_ids=ids, token_type_ids=types, **{CACHE: held})
        assert list(traced.layers) == storages()
        model(input_ids=ids[:, :1], token_type_ids=types[:, :1], **{CACHE: held})
    assert list(traced.settled) == storages()
    assert sum(traced.settled) < traced.cache


@pytest.mark.parametrize(
    ("name", "tokens", "runs"),
    [("qwen2_5_vl", 32, 1), ("qwen3_vl", 24, 4), ("llava_onevision", 9, 1), ("internvl", 72, 8)],
)
def test_a_video_is_read_by_models_that_take_videos(
    name: str, tokens: int, runs: int, tmp_path: Path
) -> None:
    zoo.build(name).config.save_pretrained(tmp_path)
    size = {"shortest_edge": 64, "longest_edge": 4000 if name == "qwen3_vl" else 800}
    if "qwen" in name:
        (tmp_path / "video_preprocessor_config.json").write_text(json.dumps({"size": size}))
    made, asked = bare(str(tmp_path), "float32"), Request(frames=8, seconds=3.0, size=(168, 112))
    clip, traced = video(made, asked), trace(made, asked)
    assert (traced.visual, clip.runs) == (tokens, runs)
    assert traced.tokens == asked.text + tokens + clip.words
    assert (traced.assumed == "") == ("qwen" in name)


@pytest.mark.usefixtures("no_changes")
def test_a_video_of_another_model_is_unknown_by_name(tmp_path: Path) -> None:
    zoo.build("smolvlm").config.save_pretrained(tmp_path)
    result = fit(str(tmp_path), Request(frames=4, size=(40, 30)), GB, dtype="float32")
    assert (
        "tokens of a video are not known for smolvlm" in result.unknown["tower, prefill and cache"]
    )


AT_MOST = ("vidcom2.prune+full", "pixelprune.prune(tolerance=100)+full")
"""Ways to prune whose numbers depend on what is seen."""
PRUNED = (
    *(
        f"{name}.prune+full"
        for name in sorted(PRUNES)
        if not name.startswith(("pixelprune", "sparse", "test", "vidcom2"))
    ),
    "sparsevlm.prune(at=1|2,keep=50%|30%)+full",
    "fastv.prune(layer=1,keep=50%)+snapkv:budget=70%,window=8",
    "spatial.prune(keep=50%)+pyramidkv:budget=60%",
    "spatial.prune(keep=50%)+kivi",
    "fastv.prune(layer=1)+snapkv:budget=9KB,window=8",
)


@pytest.mark.parametrize("spec", PRUNED)
def test_tokens_and_bytes_of_a_pruned_prompt_are_a_blocks(made: Bare, spec: str) -> None:
    policy = foveate.policy(spec)
    under = pruned(made, policy, trace(made, ASKED), ASKED)
    with compress(zoo.fresh("llava"), policy) as session:
        session.prefill(**read(made, ASKED))
    dropped = [0 if one.dropped is None else int(one.dropped) for one in session.stats.layers]
    assert [under.tokens - count for count in under.computed] == dropped
    assert cache.under(policy, under, ASKED).prompt == session.stats.bytes_after


@pytest.mark.parametrize("spec", AT_MOST)
def test_numbers_that_depend_on_what_is_seen_are_at_most_those_declared(
    made: Bare, spec: str
) -> None:
    policy = foveate.policy(spec)
    under = pruned(made, policy, trace(made, ASKED), ASKED)
    with compress(zoo.fresh("llava"), policy) as session:
        session.prefill(**read(made, ASKED))
    dropped = [0 if one.dropped is None else int(one.dropped) for one in session.stats.layers]
    planned = [under.tokens - count for count in under.computed]
    assert all(a <= b for a, b in zip(planned, dropped, strict=True))
    assert max(dropped) > 0
    assert cache.under(policy, under, ASKED).prompt >= session.stats.bytes_after


def test_a_pruned_prefill_peaks_where_the_allocator_does(made: Bare) -> None:
    asked = Request(images=150, size=(40, 30), text=250, attention="sdpa")
    policy, given = foveate.policy("random.prune(keep=20%)+full"), read(made, asked)
    whole = trace(made, asked)
    under = pruned(made, policy, whole, asked)
    with compress(zoo.fresh("llava"), policy) as session:
        session.prefill(**given)
        real = allocated(lambda: session.prefill(**given))
    peak = under.peak(cache.under(policy, under, asked)) - given["pixel_values"].nbytes
    assert peak == pytest.approx(real, rel=0.1)
    assert peak < 0.6 * (whole.prefill - given["pixel_values"].nbytes)
    layer = sum(under.computed) / (whole.tokens * len(under.computed))
    assert under.flops is not None
    assert whole.flops is not None
    assert layer**2 < under.flops / whole.flops < layer  # between attention's share and matrices'


@pytest.mark.usefixtures("no_changes")
def test_what_a_prune_stage_does_not_say_is_unknown(made: Bare, llava: Path) -> None:
    with pytest.raises(Unknown, match=r"test_third_prune.*counts"):
        pruned(made, replace(foveate.policy("full"), prune=EveryThird()), trace(made, ASKED), ASKED)
    spec = "fastv.prune(layer=9,keep=50%)+recommended:budget=10%"
    (_, one) = fit(str(llava), ASKED, GB, dtype="float32", policies=[spec]).caches
    assert (one.cache, one.peak) == (None, None)
    assert "before layer 9, and this model has the layers 0 to 2" in one.unknown


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: size_of("12"), "size '12'"),
        (lambda: seconds_of("soon"), "video 'soon'"),
        (lambda: frames_of(9.0, 0.0), "fps=0"),
        (lambda: Request(images=1), "1 image"),
        (lambda: Request(images=300, size=(9, 9)), "text=256 beside 300"),
        (lambda: Request(batch=0), "batch=0"),
        (lambda: Engine(utilisation=1.5), "utilisation=1.5"),
        (lambda: Engine(block=30), "block=30"),
    ],
)
def test_bad_input_is_named(wrong: object, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        wrong()  # type: ignore[operator]


def test_durations_and_frames() -> None:
    assert [seconds_of(one) for one in ("1h", "1.5min", "90s", "7")] == [3600, 90, 90, 7]
    assert (frames_of(3600.0, 1.0), size_of("1436x717")) == (3601, (1436, 717))


@pytest.mark.slow
@pytest.mark.skipif("dots3_note" not in CONFIG_MAPPING, reason="this release has no dots3_note")
def test_a_default_configuration_with_indexers_needs_nothing_else(tmp_path: Path) -> None:
    CONFIG_MAPPING["dots3_note"](dtype="bfloat16").save_pretrained(tmp_path)
    found = fit(str(tmp_path), Request(text=64), GB, policies=["snapkv:budget=50%"])
    assert found.unknown == {}
    assert found.weights is not None
    assert found.weights.parameters == 287_309_195_008
    assert found.trace is not None
    assert len(found.trace.forms) == 13  # of 46 layers: the others have windows
    sizes = [under.cache.prompt for under in found.caches if under.cache is not None]
    assert len(sizes) == 2
    assert sizes[1] < sizes[0]
