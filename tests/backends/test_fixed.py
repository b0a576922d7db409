"""A cache that never moves answers like the one that grows, and a captured step can be replayed."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import foveate
from foveate.errors import InvalidInput, UnsupportedCache
from foveate.hf.model.internals import CACHE
from tests import zoo
from tests.conformance.compare import TOLERANCE
from tests.jitter import other_side
from tests.pairs import by_turns

STEPS = 6
SPECS = [
    "snapkv:budget=20,window=4",  # dense
    "adakv:budget=20,window=4",  # ragged
    "snapkv:budget=20,window=4,attend=softmax_n(n=1.0)",
    "adakv:budget=20,window=4,attend=softmax_n(n=1.0)",
    "prefixkv:budget=50%,when=after_prefill",  # layers of different lengths
    "full",
]
FAMILIES = ["llama", "llava", "qwen2_5_vl"]
MROPE = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"}
MOVING = {"gemma3", "gemma3_text", "mllama"}  # sliding windows, cross-attention


def positions(family, model, inputs, cache):
    """Of the next token, [b, 1], or [3, b, 1] under M-RoPE; made on the device."""
    mask = inputs["attention_mask"]
    place = cache.get_seq_length() - (mask == 0).sum(-1, keepdim=True)
    if family not in MROPE:
        return place
    return (place + model.model.rope_deltas).expand(3, *place.shape)


def prefilled(session, family, lengths):
    inputs = zoo.prompt(family, lengths=lengths)
    return inputs, session.prefill(**inputs)


def stepping(family, model, inputs, cache):
    """One step as a function of the token."""

    def step(token):
        place = positions(family, model, inputs, cache)
        return model(input_ids=token, **{CACHE: cache}, position_ids=place).logits

    return step


def answered(step, token):
    """Logits of some steps, [b, STEPS, vocabulary], of that token and some others."""
    words = zoo.VOCAB - zoo.TEXT_FROM
    tokens = [zoo.TEXT_FROM + (token + 7 * step) % words for step in range(STEPS)]
    return torch.cat([step(token) for token in tokens], 1)


@by_turns(
    family=[f for f in zoo.FAMILIES if f not in MOVING], spec=SPECS, lengths=[(40,), (40, 31)]
)
def test_it_answers_like_the_cache_that_grows(spec, family, lengths):
    model = zoo.build(family)
    with torch.no_grad(), foveate.compress(model, spec) as session:
        inputs, cache = prefilled(session, family, lengths)
        still = session.fixed(STEPS, cache=cache)
        token, mask = inputs["input_ids"][:, -1:], inputs["attention_mask"]
        for _ in range(2):  # the second time after a reset
            growing = session.fork(cache)
            grown = torch.nn.functional.pad(mask, (0, STEPS), value=1)
            seen = mask.shape[1]

            def grow(token, growing=growing, grown=grown):
                place = positions(family, model, inputs, growing)
                columns = growing.get_seq_length() + 1
                return model(
                    input_ids=token,
                    **{CACHE: growing},
                    position_ids=place,
                    attention_mask=grown[:, :columns],
                ).logits

            expected = answered(grow, token)
            with other_side():
                found = answered(stepping(family, model, inputs, still), token)
            torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=1e-5)
            assert still.get_seq_length() == growing.get_seq_length() == seen + STEPS
            still.reset()
            assert still.get_seq_length() == seen


@by_turns(1, family=FAMILIES, spec=SPECS)
def test_a_captured_step_replays(spec, family):
    """What a trace asks of the host, or writes to other places than the cache's, a replay does not
    do again.
    """
    model = zoo.build(family)
    with torch.no_grad(), foveate.compress(model, spec) as session:
        inputs, cache = prefilled(session, family, (40, 31))
        still = session.fixed(STEPS, cache=cache)
        token = inputs["input_ids"][:, -1:]
        expected = answered(stepping(family, model, inputs, still), token)
        still.reset()
        captured = make_fx(stepping(family, model, inputs, still))(token)
    still.reset()  # tracing has taken a step
    assert torch.equal(answered(captured, token), expected)


@pytest.mark.parametrize("spec", SPECS)
def test_nothing_moves_and_the_cache_it_was_made_of_goes_on_alone(spec):
    model = zoo.build("llama")
    with torch.no_grad(), foveate.compress(model, spec) as session:
        inputs, cache = prefilled(session, "llama", (40,))
        still = session.fixed(STEPS)
        token = inputs["input_ids"][:, -1:]
        places = [
            [t.data_ptr() for t in vars(x).values() if torch.is_tensor(t)] for x in still.layers
        ]
        held = session.bytes_held
        answered(stepping("llama", model, inputs, still), token)
        assert places == [
            [t.data_ptr() for t in vars(x).values() if torch.is_tensor(t)] for x in still.layers
        ]
        assert cache.get_seq_length() == 40
        assert session.cache is cache
        assert session.bytes_held == held


def test_eager_attention_gets_the_mask_that_it_adds():
    model = zoo.fresh("llama")
    model.set_attn_implementation("eager")
    with torch.no_grad(), foveate.compress(model, SPECS[0]) as session:
        inputs, cache = prefilled(session, "llama", (40, 31))
        still = session.fixed(STEPS, cache=cache)
        token = inputs["input_ids"][:, -1:]
        found = answered(stepping("llama", model, inputs, still), token)
        with other_side():
            expected = answered(stepping("llama", model, inputs, session.fork(cache)), token)
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=1e-5)


# ------------------------------------------------------------------- what is refused


def test_no_room_is_refused():
    with foveate.compress(zoo.build("llama"), SPECS[0]) as session:
        prefilled(session, "llama", (40,))
        with pytest.raises(InvalidInput, match="room=0: give the number of tokens"):
            session.fixed(0)


@pytest.mark.parametrize("spec", SPECS[:2])
def test_a_step_for_which_no_room_is_left_is_refused(spec):
    model = zoo.build("llama")
    with torch.no_grad(), foveate.compress(model, spec) as session:
        inputs, _ = prefilled(session, "llama", (40,))
        step = stepping("llama", model, inputs, session.fixed(2))
        token = inputs["input_ids"][:, -1:]
        step(token)
        step(token)
        with pytest.raises(InvalidInput, match="room for 2 tokens after its prompt"):
            step(token)


def test_several_tokens_in_one_pass_are_refused():
    model = zoo.build("llama")
    with torch.no_grad(), foveate.compress(model, SPECS[0]) as session:
        inputs, _ = prefilled(session, "llama", (40,))
        with pytest.raises(InvalidInput, match="one token a pass, not 3"):
            model(input_ids=inputs["input_ids"][:, :3], **{CACHE: session.fixed(8)})


def test_a_prompt_that_is_not_finished_is_refused():
    model = zoo.build("llama")
    with torch.no_grad(), foveate.compress(model, SPECS[0]) as session:
        session.expect(40)
        model(input_ids=zoo.prompt("llama", lengths=(20,))["input_ids"])
        with pytest.raises(InvalidInput, match="has not been read to its end"):
            session.fixed(8)


@pytest.mark.parametrize(
    ("family", "spec", "says"),
    [
        ("llama", "snapkv+kivi(bits=4):budget=20,window=4", "repacked"),
        ("llama", "h2o:budget=20,when=over_budget", "compresses while answers are decoded"),
        *(
            (family, "snapkv:budget=20,window=4", "is not compressed, and whose tensors move")
            for family in sorted(MOVING)
        ),
    ],
)
def test_what_moves_is_refused(family, spec, says):
    with foveate.compress(zoo.build(family), spec) as session:
        prefilled(session, family, (40,))
        with pytest.raises(UnsupportedCache, match=says):
            session.fixed(8)


def test_beams_are_refused():
    with foveate.compress(zoo.build("llama"), SPECS[0]) as session:
        prefilled(session, "llama", (40,))
        with pytest.raises(UnsupportedCache, match="without beams"):
            session.fixed(8).reorder_cache(torch.tensor([0]))


def test_it_belongs_to_its_block():
    model = zoo.build("llama")
    with torch.no_grad(), foveate.compress(model, SPECS[0]) as session:
        inputs, _ = prefilled(session, "llama", (40,))
        still = session.fixed(8)
    token = inputs["input_ids"][:, -1:]
    with pytest.raises(UnsupportedCache, match="was left"):
        model(input_ids=token, **{CACHE: still})
    with (
        foveate.compress(model, SPECS[1]),
        pytest.raises(UnsupportedCache, match="another compress"),
    ):
        model(input_ids=token, **{CACHE: still})
