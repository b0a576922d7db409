"""Policies that read the prompt a second time: KVzip."""

import copy
from itertools import pairwise

import pytest
import torch
from transformers import DynamicCache

import foveate
from foveate.errors import InvalidParameter, MissingModality, UnsupportedModel, UnsupportedPolicy
from foveate.hf import branch, record
from foveate.hf.model.internals import CACHE
from foveate.vllm.plans.settings import check_policy
from tests import zoo
from tests.conformance.compare import check_generate
from tests.conformance.oracle import event_of
from tests.jitter import other_side
from tests.pairs import by_turns
from tests.ties import choices, holds_best, same_kept

LENGTHS = {"alone": (40,), "left-padded": (23, 31, 40)}
REFUSED = {"gemma3": "masks of its own", "mllama": "outside of its prompt"}


def eager(family):
    model = zoo.fresh(family)
    model.config.get_text_config(decoder=True)._attn_implementation_internal = "eager"
    return model


@pytest.mark.parametrize("name", ["eager", "sdpa"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_it_keeps_the_pairs_that_a_second_reading_attends_to_most(lengths, name):
    """Under SDPA the attention itself notes what is paid at most, where nothing is padded."""
    model, inputs = eager("llama"), zoo.prompt("llama", lengths=lengths)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    n, pads = ids.shape[1], inputs["attention_mask"].shape[1] - inputs["attention_mask"].sum(-1)
    with torch.no_grad(), other_side():
        cache = DynamicCache(config=model.config)
        positions = (mask.cumsum(-1) - 1).clamp_min(0)
        first = {"attention_mask": mask, "position_ids": positions}
        model(input_ids=ids, **first, **{CACHE: cache})
        again = model(
            input_ids=ids,
            attention_mask=torch.cat([mask, mask], 1),
            position_ids=positions + positions.amax(-1, keepdim=True) + 1,
            output_attentions=True,
            **{CACHE: cache},
        )
    heads = model.config.num_key_value_heads
    scores = []
    for paid in again.attentions:
        b, hq = paid.shape[:2]
        real = paid * mask[:, None, :, None]
        scores.append(real.view(b, heads, hq // heads, n, 2 * n)[..., :n].amax((2, 3)))
    model.config.get_text_config(decoder=True)._attn_implementation_internal = name
    with foveate.compress(model, "kvzip:budget=40%,sinks=0") as session, torch.no_grad():
        model(input_ids=ids, **first, **{CACHE: DynamicCache(config=model.config)})
        found = event_of(session.cache).kept
    for row, pad in enumerate(pads.tolist()):
        ranked = torch.stack([one[row, :, pad:] for one in scores])
        total = (n - pad) * 2 // 5 * heads * len(scores)
        ours = torch.stack([found[layer][row, :, pad:n] for layer in sorted(found)])
        assert holds_best(ours, ranked, total)


@by_turns(family=sorted(set(zoo.FAMILIES) - set(REFUSED)), lengths=LENGTHS)
def test_every_family_answers_as_the_masked_full_cache(family, lengths):
    check_generate(
        zoo.build(family), foveate.kvzip(budget=0.5), zoo.prompt(family, lengths=lengths)
    )


@pytest.mark.parametrize("family", REFUSED)
def test_what_cannot_be_read_again_is_refused_and_the_model_stays_as_it_was(family):
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=(40,))
    stock = model.generate(**inputs, max_new_tokens=3, do_sample=False)
    with (
        foveate.compress(model, "kvzip:budget=50%"),
        pytest.raises(UnsupportedModel, match=REFUSED[family]),
    ):
        model.generate(**inputs, max_new_tokens=3)
    assert torch.equal(model.generate(**inputs, max_new_tokens=3, do_sample=False), stock)


@pytest.mark.parametrize("family", ["qwen2_vl", "llava"])
def test_a_branch_keeps_what_a_block_of_its_own_keeps(family):
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=(31, 40))
    with other_side():
        recording = record(model, **inputs)
    held = recording.cache.layers[0].pairs.k.clone()
    with foveate.compress(model, "kvzip:budget=30%") as session:
        with choices() as own:
            session.prefill(**inputs)
        with choices() as other:
            branch(session, recording)
    same_kept(own, other)
    assert torch.equal(recording.cache.layers[0].pairs.k, held)


@pytest.mark.parametrize("family", ["llama", "qwen2_5_vl", "paligemma"])
def test_a_prompt_in_pieces_is_exact_too(family):
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=(31, 40))
    check_generate(model, foveate.kvzip(budget=0.4, chunk=16, sinks=1, recent=2), inputs)
    check_generate(model, foveate.kvzip(budget=0.4, heads="even"), inputs)


def test_a_second_turn_reads_what_is_new_again():
    model, inputs = zoo.build("llama"), zoo.prompt("llama", lengths=(40,))
    more = zoo.extend("llama", inputs, new_text=20)
    with foveate.compress(model, "kvzip:budget=50%") as session:
        cache = session.prefill(**inputs)
        session.rearm(cache)
        new = {name: t[:, 40:] if name == "input_ids" else t for name, t in more.cached.items()}
        model(**new, **{CACHE: cache})
        assert session.stats.seen == 60
        assert session.stats.kept_tokens == 30


def test_nothing_is_left_of_a_second_reading_that_fails():
    model, inputs = zoo.build("llama"), zoo.prompt("llama", lengths=(40,))
    before = copy.deepcopy(model.state_dict())
    with foveate.compress(model, "kvzip:budget=50%") as session:
        broken = pytest.MonkeyPatch()
        broken.setattr(type(session.policy.score), "again", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            session.prefill(**inputs)
        broken.undo()
        session.prefill(**inputs)
        assert session.stats.kept_tokens == 20
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


def test_what_has_no_model_refuses_it():
    q = torch.randn(1, 4, 20, 8)
    with pytest.raises(UnsupportedPolicy, match="takes the model"):
        foveate.compress_tensors(foveate.kvzip(budget="20%"), [(q, q, q)])
    with pytest.raises(UnsupportedPolicy, match="which tensors do not tell"):
        foveate.compress_tensors("snapkv:budget=20%,score=indexer", [(q, q, q)])
    with pytest.raises(UnsupportedPolicy, match="a second time"):
        check_policy(foveate.kvzip(budget="20%", heads="even"))
    with pytest.raises(InvalidParameter, match="needs passes after the complete prompt"):
        foveate.policy("kvzip:budget=20%,when=over_budget")


def passes_of(decoder):
    """Tokens that each pass of a decoder reads from now on."""
    lengths = []

    def note(_, __, given):
        ids, embeds = given.get("input_ids"), given.get("inputs_embeds")
        lengths.append((embeds if ids is None else ids).shape[1])

    decoder.register_forward_pre_hook(note, with_kwargs=True)
    return lengths


def test_a_prompt_that_fits_is_read_once_and_again_only_when_a_later_turn_does_not():
    model, inputs = zoo.fresh("llama"), zoo.prompt("llama", lengths=(40,))
    more = zoo.extend("llama", inputs, new_text=20)
    new = {name: t[:, 40:] if name == "input_ids" else t for name, t in more.cached.items()}
    passes = passes_of(model.model)
    with foveate.compress(model, "kvzip:budget=50") as session:
        cache = session.prefill(**inputs)
        assert session.stats.kept_tokens == 40
        assert passes == [40]
        session.rearm(cache)
        model(**new, **{CACHE: cache})
        assert passes == [40, 20, 40, 20]
        assert session.stats.kept_tokens == 50
        repeated = session.fork(cache)
        session.rearm(repeated)
        model(**{**new, "attention_mask": None}, **{CACHE: repeated})
        assert passes[4:] == [20, 20]


@pytest.mark.parametrize("change", ["reorder", "crop"])
def test_what_changed_since_it_was_read_whole_is_not_read_again(change):
    model, inputs = zoo.fresh("llama"), zoo.prompt("llama", lengths=(40,))
    passes = passes_of(model.model)
    with foveate.compress(model, "kvzip:budget=50") as session:
        cache = session.prefill(**inputs)
        rows = 1
        if change == "reorder":
            cache.batch_repeat_interleave(2)
            rows = 2
        else:
            cache.crop(30)
        session.rearm(cache)
        new = inputs["input_ids"][:, :30].repeat(rows, 1)
        model(input_ids=new, **{CACHE: cache})
        assert passes == [40, 30, 30]
        assert session.stats.kept_tokens == 50


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_over_its_piece_attention_is_compared_with_what_it_repeats_alone(lengths):
    model, inputs, chunk, sinks = eager("llama"), zoo.prompt("llama", lengths=lengths), 16, 2
    mask = inputs["attention_mask"]
    n, pads = mask.shape[1], mask.shape[1] - mask.sum(-1)
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    first = {"attention_mask": mask, "position_ids": positions}
    heads = model.config.num_key_value_heads
    scores = [torch.zeros(len(mask), heads, n) for _ in range(model.config.num_hidden_layers)]
    columns = torch.arange(n)
    for start in range(0, n, chunk):
        piece = slice(start, min(start + chunk, n))
        with torch.no_grad():
            cache = DynamicCache(config=model.config)
            model(input_ids=inputs["input_ids"], **first, **{CACHE: cache})
            lowest = positions[:, piece].amin(-1, keepdim=True)
            again = model(
                input_ids=inputs["input_ids"][:, piece],
                attention_mask=torch.cat([mask, mask[:, piece]], 1),
                position_ids=positions[:, piece] - lowest + positions.amax(-1, keepdim=True) + 1,
                output_attentions=True,
                **{CACHE: cache},
            )
        inside = (columns >= piece.start) & (columns < piece.stop)
        sees = (inside | (columns - pads[:, None] < sinks)) & mask.bool()
        sees = torch.cat([sees, mask[:, piece].bool()], 1)[:, None, None]
        for place, paid in enumerate(again.attentions):
            part = paid * sees * mask[:, None, piece, None]
            part = part / part.sum(-1, keepdim=True).clamp_min(1e-9)
            most = part[..., :n].unflatten(1, (heads, -1)).amax((2, 3))
            scores[place] = torch.maximum(scores[place], most)
    spec = f"kvzip:budget=40%,over=piece,chunk={chunk},sinks={sinks}"
    with foveate.compress(model, spec) as session, torch.no_grad():
        model(input_ids=inputs["input_ids"], **first, **{CACHE: DynamicCache(config=model.config)})
        found = event_of(session.cache).kept
    for row, pad in enumerate(pads.tolist()):
        ranked = torch.stack([one[row, :, pad:] for one in scores])
        ranked[..., :sinks] = torch.inf
        total = (n - pad) * 2 // 5 * heads * len(scores)
        ours = torch.stack([found[layer][row, :, pad:n] for layer in sorted(found)])
        assert holds_best(ours, ranked, total)


@pytest.mark.parametrize("chunk", [2048, 6])
def test_images_are_read_again_one_by_one(chunk):
    model, inputs = zoo.fresh("llava"), zoo.prompt("llava", lengths=(40,), images=2)
    visual = (inputs["input_ids"][0] == model.config.image_token_id).int()
    borders = [0, *(visual.diff().nonzero()[:, 0] + 1).tolist(), 40]
    pieces = [
        min(chunk, last - start)
        for first, last in pairwise(borders)
        for start in range(first, last, chunk)
    ]
    passes = passes_of(model.model.language_model)
    with foveate.compress(model, f"kvzip:budget=50%,pieces=images,chunk={chunk}") as session:
        session.prefill(**inputs)
        assert passes == [40, *pieces]
        assert len(pieces) >= 4
        embeds = model.get_input_embeddings()(inputs["input_ids"])
        with pytest.raises(MissingModality, match="one by one"):
            session.prefill(inputs_embeds=embeds)
