"""A saved context belongs to one model, one policy and one tokenizer, and says so."""

import copy
import hashlib
import json
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

import foveate
from foveate.cache.pairs import exact
from foveate.errors import CacheMismatch, CannotWrite, InvalidInput, UnsupportedCache
from foveate.hf.model.internals import CACHE
from foveate.policies.spec import STAGES, stage
from tests import zoo
from tests.conformance.compare import GREEDY, difference
from tests.fuzz import fuzzed

POLICY = "snapkv:budget=50%,window=4"


def tokenizer(**vocabulary: int) -> PreTrainedTokenizerFast:
    """A tokenizer of a few words."""
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(vocabulary, unk_token="a")))


@pytest.fixture
def saved(tmp_path):
    """A context that llama read, with a tokenizer's fingerprint."""
    with foveate.compress(zoo.build("llama"), POLICY) as session:
        session.prefill(**zoo.prompt("llama", lengths=(23, 40)))
        return session.save(tmp_path / "context.safetensors", tokenizer=tokenizer(a=0, b=1))


def test_another_model_is_refused(saved):
    other = zoo.fresh("llama")
    with torch.no_grad():
        other.model.layers[1].self_attn.k_proj.weight[0, 0] += 1e-3
    for model in (other, zoo.build("qwen2")):
        with (
            foveate.compress(model, POLICY) as session,
            pytest.raises(CacheMismatch, match="another model"),
        ):
            session.load(saved)


@pytest.mark.parametrize("family", ["llama", "llava"])
def test_a_model_that_was_saved_and_loaded_in_between_is_the_same_one(family, tmp_path):
    model, inputs = zoo.fresh(family), zoo.prompt(family, lengths=(23, 40))
    with foveate.compress(model, POLICY) as session:
        session.prefill(**inputs)
        path = session.save(tmp_path / "context.safetensors")
    model.save_pretrained(tmp_path / "model")
    again = type(model).from_pretrained(tmp_path / "model", dtype=model.dtype)
    for one in (model, again):
        with foveate.compress(one, POLICY) as session:
            session.load(path)


def test_another_policy_is_refused_and_the_right_one_is_named(saved):
    with (
        foveate.compress(zoo.build("llama"), "knorm:budget=50%") as session,
        pytest.raises(CacheMismatch, match=r"foveate\.policy\('snapkv:budget=50%,window=4'\)"),
    ):
        session.load(saved)


def test_another_tokenizer_is_refused(saved):
    with foveate.compress(zoo.build("llama"), POLICY) as session:
        with pytest.raises(CacheMismatch, match="another tokenizer"):
            session.load(saved, tokenizer=tokenizer(a=1, b=0))
        session.load(saved, tokenizer=tokenizer(a=0, b=1))
        session.load(saved)


def test_what_is_no_saved_cache_is_refused(tmp_path):
    foreign = tmp_path / "foreign.safetensors"
    save_file({"a": torch.zeros(1)}, foreign)
    (tmp_path / "text").write_text("no tensors")
    with foveate.compress(zoo.build("llama"), POLICY) as session:
        for name, reason in {
            "missing": "not a saved cache",
            "text": "not a saved cache",
            "foreign.safetensors": "schema",
        }.items():
            with pytest.raises(InvalidInput, match=reason):
                session.load(tmp_path / name)


def test_what_was_never_read_or_never_compressed_cannot_be_saved(tmp_path):
    from transformers import DynamicCache

    model = zoo.build("llama")
    with foveate.compress(model, POLICY) as session:
        with pytest.raises(UnsupportedCache, match="not compressed by Foveate"):
            session.save(tmp_path / "x", cache=DynamicCache(config=model.config))
        session.expect(tokens=40)
        cache = DynamicCache(config=model.config)
        model(torch.full((1, 20), 30), **{CACHE: cache})
        with pytest.raises(InvalidInput, match="no finished prompt"):
            session.save(tmp_path / "x", cache=cache)


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_a_loaded_context_is_the_saved_one(family, tmp_path):
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=(31, 40))
    question = zoo.extend(family, inputs, new_text=5).cached
    with foveate.compress(model, "h2o:budget=50%,when=over_budget(every=2)") as session:
        cache = session.prefill(**inputs)
        path = session.save(tmp_path / "context.safetensors")
        answers = [
            model.generate(**question, **{CACHE: each}, max_new_tokens=6)
            for each in (session.load(path), cache)
        ]
    assert torch.equal(*answers)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl"])
def test_a_saved_context_brings_its_own_positions_along(family, tmp_path):
    """Its M-RoPE offset, which the model itself knows of its latest prompt alone."""
    model = zoo.build(family)
    first, second = zoo.prompt(family), zoo.prompt(family, lengths=(60,), images=2, seed=5)
    question = zoo.extend(family, first, new_text=5).cached
    del question["position_ids"]  # left to the model
    with foveate.compress(model, "knorm:budget=50%") as session:
        cache = session.prefill(**first)
        path = session.save(tmp_path / "context.safetensors")
        expected = model.generate(**question, **{CACHE: cache}, **GREEDY)
        session.prefill(**second)
        answer = model.generate(**question, **{CACHE: session.load(path)}, **GREEDY)
    assert difference(answer, expected) == 0


# ------------------------------------------------------------------- damage


SMALL = "adakv:budget=50%,window=4,store=kivi(residual=4,group=4)"


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    """A file, a block that it can be loaded in, and the cache that it holds."""
    with foveate.compress(zoo.build("llama"), SMALL) as session:
        cache = session.prefill(**zoo.prompt("llama", lengths=(63, 80)))
        path = session.save(tmp_path_factory.mktemp("saved") / "context.safetensors")
        yield path, session, cache


def contents(path):
    """The notes and tensors of a file."""
    with safe_open(path, "pt") as file:
        return dict(file.metadata()), {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118


def same(one, other):
    """Whether two caches hold the same."""
    held = ([layer.pairs.tensors() for layer in cache.layers] for cache in (one, other))
    return all(
        a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
        for a, b in zip(*held, strict=True)
    )


@fuzzed
@given(
    at=st.floats(0, 1, exclude_max=True),
    new=st.binary(min_size=1, max_size=3),
    gone=st.integers(0, 8),
)
def test_a_file_of_other_bytes_holds_the_same_context_or_is_refused(
    context, tmp_path, at, new, gone
):
    path, session, cache = context
    held = path.read_bytes()
    place = int(at * len(held))
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(held[:place] + new + held[place + gone :])
    try:
        loaded = session.load(damaged)
    except InvalidInput as error:
        refused = str(error)
    else:
        assert same(loaded, cache)
        refused = str(damaged)
    assert str(damaged) in refused


@fuzzed
@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_one_bit_of_the_tensors_that_is_flipped_is_noticed(context, tmp_path, at, bit):
    path, session, _ = context
    held = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(held[:8], "little")
    held[begin + int(at * (len(held) - begin))] ^= 1 << bit
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(held)
    with pytest.raises(InvalidInput, match="damaged"):
        session.load(damaged)


@pytest.mark.parametrize("field", ["schema", "model", "policy", "tokenizer", "seen", "digest"])
def test_a_file_without_one_of_its_notes_is_refused(context, tmp_path, field):
    path, session, _ = context
    note, tensors = contents(path)
    del note[field]
    save_file(tensors, tmp_path / "cut.safetensors", note)
    with pytest.raises(InvalidInput, match=f"{field}"):
        session.load(tmp_path / "cut.safetensors")


def unsigned(path, to, change):
    """The file as it was written before there was a digest, with something changed."""
    note, tensors = contents(path)
    del note["digest"]
    note |= {"schema": "foveate-cache-1", "model": fingerprint(zoo.build("llama"))}
    change(note, tensors)
    save_file({name: t.contiguous().clone() for name, t in tensors.items()}, to, note)
    return to


def test_a_file_without_a_digest_is_still_read(context, tmp_path):
    path, session, cache = context
    assert same(session.load(unsigned(path, tmp_path / "old", lambda note, tensors: None)), cache)


def without(config, names):
    """A configuration, and those inside it, without some names."""
    return {
        name: without(value, names) if isinstance(value, dict) else value
        for name, value in config.items()
        if name not in names
    }


def fingerprint(model, first_release=False):
    """The fingerprint of a model in files of schema 1 and 2, and in those of 0.1.0."""
    names = ["_name_or_path", "transformers_version", "dtype", "torch_dtype"]
    names += [] if first_release else ["architectures"]
    config = without(model.config.to_dict(), names)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    digest.update(b"" if first_release else type(model).__name__.encode())
    for name, weight in sorted(model.named_parameters()):
        digest.update(f"{name}{tuple(weight.shape)}".encode())
        digest.update(weight.detach().flatten()[:16].float().cpu().numpy().tobytes())
    return digest.hexdigest()


def test_a_file_of_the_first_release_is_read_with_its_model_alone(context, tmp_path):
    path, session, cache = context
    told = fingerprint(zoo.build("llama"), first_release=True)
    of_mine = unsigned(path, tmp_path / "mine", lambda note, tensors: note.update(model=told))
    assert same(session.load(of_mine), cache)
    told = fingerprint(zoo.build("qwen2"), first_release=True)
    others = unsigned(path, tmp_path / "others", lambda note, tensors: note.update(model=told))
    with pytest.raises(CacheMismatch, match="another model"):
        session.load(others)


def cut(name):
    return lambda note, tensors: tensors.update({name: tensors[name][..., :5]})


def filled(name, value):
    return lambda note, tensors: tensors[name].fill_(value)


def dropped(name, rows, tokens):
    return lambda note, tensors: tensors.update({name: torch.zeros(rows, tokens).bool()})


def noted(**seen):
    return lambda note, tensors: note.update(seen=json.dumps({**json.loads(note["seen"]), **seen}))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (cut("0.k"), r"'k' is float32 \[.*5\], and has to be \[b h n d\]"),
        (cut("1.body.k_step"), "layer 1's tensor 'body.k_step'"),
        (
            lambda note, tensors: tensors.update(pads=torch.zeros(3).long()),
            "'pads' does not have one integer",
        ),
        (filled("0.v", float("nan")), "'0.v' holds NaN"),
        (filled("1.body.k_least", float("inf")), "'1.body.k_least' holds NaN or an infinite"),
        (filled("0.body.columns", 10_000), "'body.columns' are not all from 0 to 79"),
        (filled("0.body.counts", 3), "'body.counts' do not add up"),
        (filled("0.body.sizes", 0), "'body.sizes' do not add up"),
        (lambda note, tensors: tensors.pop("1.v"), "layer 1 has no tensor 'v'"),
        (lambda note, tensors: tensors.pop("0.body.sizes"), "no tensor 'body.sizes'"),
        (lambda note, tensors: tensors.pop("pads"), "'pads'"),
        (lambda note, tensors: tensors.update({"9.k": tensors["0.k"]}), "'9.k' belongs to no"),
        (lambda note, tensors: tensors.update({"0.x": tensors["0.k"]}), "'x', which is unknown"),
        (dropped("dropped.1", 3, 80), "'dropped.1' does not have one boolean"),
        (dropped("dropped.1", 2, 81), "'dropped.1' does not have one boolean"),
        (dropped("dropped.-1", 2, 80), "'dropped.-1' does not have one boolean"),
        (lambda note, tensors: note.update(seen="{"), "its note 'seen' is '{'"),
        (lambda note, tensors: note.update(seen="[]"), "its note 'seen'"),
        (noted(**{"0": [80]}), "says \\[80\\] of layer 0"),
        (noted(**{"0": [80, 80, -1]}), "its note 'seen'"),
        (noted(**{"0": [10**30, 80, 0]}), "its note 'seen'"),
        (noted(**{"0": [90, 80, 80]}), "has seen 90 tokens"),
    ],
)
def test_what_does_not_fit_together_is_refused_before_it_is_used(context, tmp_path, change, says):
    path, session, _ = context
    with pytest.raises(InvalidInput, match=says):
        session.load(unsigned(path, tmp_path / "old", change))


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device"),
    ],
)
def test_a_file_that_cannot_be_written_leaves_what_was_there(error, context, tmp_path, monkeypatch):
    path, session, cache = context
    kept = tmp_path / "context.safetensors"
    kept.write_bytes(path.read_bytes())

    def full(*args):
        raise error

    monkeypatch.setattr("foveate.hf.saving.cache_files.save_file", full)
    with pytest.raises(CannotWrite, match="No space left"):
        session.save(kept, cache=cache)
    assert [one.name for one in tmp_path.iterdir()] == ["context.safetensors"]
    assert same(session.load(kept), copy.deepcopy(cache))


# Stores of other packages


class Halves:
    """Pairs of which keys and values are held as a half and what the half leaves: exact."""

    def __init__(self, pairs, lost=False):
        self.pairs, self.lost = pairs, lost

    def __getattr__(self, name):
        return getattr(self.pairs, name)

    def tensors(self):
        found = self.pairs.tensors()
        k = found.pop(name := "flat_k" if "flat_k" in found else "k")
        return found | {name: k / 2, "k_left": torch.zeros_like(k) if self.lost else k - k / 2}

    def fork(self):
        return Halves(self.pairs.fork(), self.lost)


@dataclass(frozen=True, kw_only=True)
class NoWayBack:
    """As a store was written before it could be saved: its pairs name their tensors, and that is
    all.
    """

    exact: bool = True
    lost: bool = False

    def __call__(self, pairs):
        return Halves(pairs.opened(), self.lost)


@dataclass(frozen=True, kw_only=True)
class Back(NoWayBack):
    def restored(self, tensors, first):
        name = "flat_k" if "flat_k" in tensors else "k"
        k = tensors[name] + tensors["k_left"]
        return self(exact({**tensors, name: k}, first))


@pytest.fixture
def their_stores():
    stage("no_way_back")(NoWayBack)
    stage("back")(Back)
    yield
    for name in ("no_way_back", "back"):
        del STAGES[name]


@pytest.mark.usefixtures("their_stores")
@pytest.mark.parametrize("policy", [POLICY, "adakv:budget=50%,window=4"])
def test_a_store_of_another_package_is_saved_and_restored_by_itself(policy, tmp_path):
    model, inputs = zoo.fresh("llama"), zoo.prompt("llama", lengths=(23, 40))
    with foveate.compress(model, f"{policy},store=back()") as session:
        held = session.prefill(**inputs)
        path = session.save(tmp_path / "context.safetensors")
        again = session.load(path)
        for one, other in zip(held.layers, again.layers, strict=True):
            assert torch.equal(one.pairs.counts, other.pairs.counts)
            assert all(map(torch.equal, one.pairs.padded(), other.pairs.padded()))
        step = {"input_ids": torch.full((2, 1), 50)}
        step["attention_mask"] = torch.nn.functional.pad(inputs["attention_mask"], (0, 1), value=1)
        with torch.no_grad():
            logits = [model(**step, **{CACHE: one}).logits for one in (held, again)]
        assert torch.equal(*logits)


@pytest.mark.usefixtures("their_stores")
@pytest.mark.parametrize(
    ("store", "says"),
    [("no_way_back()", "has no restored"), ("back(lost=true)", "did not rebuild")],
)
def test_a_store_that_has_no_way_back_is_refused_by_its_name(store, says, tmp_path):
    with foveate.compress(zoo.fresh("llama"), f"{POLICY},store={store}") as session:
        session.prefill(**zoo.prompt("llama", lengths=(23, 40)))
        with pytest.raises(
            UnsupportedCache, match=f"(?i){store.partition('(')[0].split('_')[0]}.*{says}"
        ):
            session.save(tmp_path / "context.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "store", ["kivi", "kivi(values=channel)", "turboquant", "turboquant(bits=3,sketch=true)"]
)
def test_pairs_in_few_bits_are_read_as_they_were_stored(store, tmp_path):
    name, _, rest = store.partition("(")
    term = f"{name}({rest.removesuffix(')')}{',' if rest else ''}residual=2)"
    with foveate.compress(zoo.fresh("llama"), f"knorm+{term}:budget=20") as session:
        cache = session.prefill(**zoo.prompt("llama", lengths=(23, 40)))
        loaded = session.load(session.save(tmp_path / "context.safetensors"))
    for ours, theirs in zip(loaded.layers, cache.layers, strict=True):
        assert all(map(torch.equal, ours.pairs.padded(), theirs.pairs.padded()))


def test_a_loaded_cache_has_the_statistics_of_the_saved_one(tmp_path):
    model, file = zoo.fresh("llama"), tmp_path / "context.safetensors"
    with foveate.compress(model, POLICY) as session:
        session.prefill(**zoo.prompt("llama", lengths=(23, 40)))
        saved_stats = session.stats
        session.save(file)
    with foveate.compress(model, POLICY) as session:
        session.load(file)
        assert len(session.stats.layers) == len(saved_stats.layers) > 0
        for loaded, stock in zip(session.stats.layers, saved_stats.layers, strict=True):
            assert torch.equal(loaded.kept, stock.kept)
            assert (loaded.seen, loaded.bytes_before) == (stock.seen, stock.bytes_before)
            assert (loaded.compressed, loaded.seconds) == (True, 0)
