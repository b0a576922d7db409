"""What modules note on themselves while something is read aside is undone; a cache that a model
drops is followed.
"""

import logging

import pytest
import torch
from torch import nn
from transformers import Phi3ForCausalLM

import foveate
from foveate.hf import branch, calibrate_each, record
from foveate.hf.model.internals import CACHE
from foveate.hf.model.module_state import ModuleStates, restored_modules
from foveate.policies.heads import Shown
from tests.backends.interrupting import ANSWER, drawn, growing
from tests.conformance.compare import check_generate, difference

IDS = torch.randint(20, 190, (1, 60), generator=torch.Generator().manual_seed(1))


def switching():
    """A model that reads on with other frequencies from 49 tokens on, and anew (longrope)."""
    return drawn(
        Phi3ForCausalLM,
        max_position_embeddings=192,
        original_max_position_embeddings=48,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 48,
            "short_factor": [1.0] * 8,
            "long_factor": [2.0] * 8,
        },
    )


def states(model):
    """Of its rotary module."""
    rotary = model.model.rotary_emb
    names = sorted(set(vars(rotary)) - set(vars(nn.Module())))
    return {n: repr(getattr(rotary, n)) for n in names} | {"inv_freq": repr(rotary.inv_freq)}


@pytest.mark.parametrize(
    "spec", ["kvzip:budget=40%", "kvzip:budget=40%,chunk=7", "snapkv:budget=40%,window=4"]
)
def test_an_answer_after_a_second_reading_is_rotated_as_the_stock_one(spec):
    """rotary embeddings that follow the text's length (dynamic NTK, longrope) | work | a second
    reading (`kvzip`) and a calibration leave the model's modules as they were
    """
    model = growing()

    def as_new(module, args, given):  # in stock, too, what was read before would count
        if given["input_ids"].shape[1] == 60:
            module.model.rotary_emb.max_seq_len_cached = 48

    hook = model.register_forward_pre_hook(as_new, with_kwargs=True)
    check_generate(model, foveate.policy(spec), {"input_ids": IDS})
    hook.remove()
    mine, stock = growing(), growing()
    stock.generate(IDS, **ANSWER)
    with foveate.compress(mine, spec):
        mine.generate(IDS, **ANSWER)
    assert states(mine) == states(stock)


def test_frequencies_that_a_second_reading_switched_in_place_are_back():
    mine, stock = switching(), switching()
    before = stock.model.rotary_emb.inv_freq
    stock(IDS[:, :40])
    in_place = stock.model.rotary_emb.inv_freq is before  # 5.4.0 makes another buffer each time
    buffer = mine.model.rotary_emb.inv_freq
    with foveate.compress(mine, "kvzip:budget=40%") as session:
        session.prefill(input_ids=IDS[:, :40])
        # CUDA graphs read it where it is
        assert mine.model.rotary_emb.inv_freq is buffer or not in_place
        assert states(mine) == states(stock)


def heads(model):
    shown = Shown({"input_ids": IDS}, (("a", (3, 4)),), "1 2 3")

    class Words:
        def decode(self, tokens, *, skip_special_tokens):
            return "a"

        def encode(self, text, *, add_special_tokens):
            return [1, 2, 3]

    return foveate.hf.calibrate_heads(model, "sparsemm", [shown], Words())


CALIBRATIONS = {
    "of a budget": lambda m: foveate.calibrate(m, "prefixkv:budget=50%", [{"input_ids": IDS}]),
    "of several": lambda m: calibrate_each(m, ["prefixkv:budget=50%"], [{"input_ids": IDS}]),
    "of tensors": lambda m: foveate.calibrate(m, "recommended", [{"input_ids": IDS}]),
    "of heads": heads,
}


@pytest.mark.parametrize("calibrate", CALIBRATIONS.values(), ids=CALIBRATIONS)
def test_a_calibration_leaves_the_model_as_it_was(calibrate):
    model = growing()
    before = states(model)
    calibrate(model)
    assert states(model) == before


def test_every_branch_of_a_recording_goes_on_from_its_prompt():
    model, said = growing(), []
    recording = record(model, input_ids=IDS)
    for _ in range(2):
        with foveate.compress(model, "snapkv:budget=40%,window=4") as session:
            cache = branch(session, recording)
            asked = torch.cat([IDS, IDS[:, :2]], dim=1)
            said.append(model.generate(asked, **{CACHE: cache}, **{**ANSWER, "max_new_tokens": 20}))
    assert difference(*said) == 0


class Noting(nn.Module):
    """A module without weights that notes something in every way there is."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(4.0), persistent=False)
        self.register_buffer("longest", torch.tensor(3), persistent=False)
        self.tensors, self.order, self.names = {"a": torch.ones(2)}, [torch.ones(2)], {"a"}
        self.offsets = None

    def forward(self):
        self.table.mul_(2)
        self.longest = torch.tensor(9)
        self.tensors |= {"a": torch.zeros(2), "b": torch.zeros(2)}
        self.order.append(torch.zeros(2))
        self.names.clear()
        self.offsets, self.more = torch.ones(1), 1


def said(value):
    """What a value is. The order of a set goes by what was added first, and by the hashes' seed."""
    return repr(sorted(value) if isinstance(value, set) else value)


@pytest.mark.parametrize("inference", [False, True])
def test_whatever_a_module_notes_is_undone_and_what_is_of_its_weights_is_not(inference):
    with torch.inference_mode(inference):
        noting, linear = Noting(), nn.Linear(2, 2)
    before = {n: (x, said(x)) for n, x in vars(noting).items() if n != "training"}
    table = noting.table
    states = ModuleStates(nn.ModuleList([noting, linear]))
    with torch.inference_mode(inference):
        noting()
    linear.packed = True
    noting.forward = len  # as a block, which may have been entered since, wraps it
    for _ in range(2):  # an interrupt may have it done twice
        states.put_back()
        assert noting.table is table
        after = {n: (x, said(x)) for n, x in vars(noting).items() if n in before}
        assert vars(noting).keys() == before.keys() | {"forward", "training"}
        assert noting.forward is len
        assert not [
            n for n, (x, text) in after.items() if x is not before[n][0] or text != before[n][1]
        ]
    assert linear.packed


@pytest.mark.parametrize("spec", ["full", "snapkv:budget=50%,window=4", "kvzip:budget=50%"])
def test_a_cache_that_a_model_drops_is_followed_and_it_is_said(spec, caplog):
    """an answer during which the model drops its cache and reads all anew (Phi-3's longrope, at
    `original_max_position_embeddings`) | works | the new cache's prompt is compressed as the old
    one's was and the answer so far kept whole, with a warning; policies that read again, share
    their budget over the layers or compress while they decode take both for the prompt
    """
    model, stock = switching(), switching()
    how = {**ANSWER, "max_new_tokens": 14}
    expected = stock.generate(IDS[:, :40], **how)
    if expected[CACHE].get_seq_length() != 53:
        pytest.skip("this release drops the cache and reads the last token alone (5.4.0)")
    with foveate.compress(model, spec) as session, caplog.at_level(logging.WARNING, "foveate"):
        said = model.generate(IDS[:, :40], **how)
        whole = not spec.startswith("snapkv")  # what reads again, or keeps everything
        assert session.cache is said[CACHE]
        assert session.cache.get_seq_length() == 53
        assert session.stats.seen == (49 if whole else 40)
        assert session.bytes_held == sum(layer.nbytes for layer in said[CACHE].layers)
        if spec == "full":
            assert all(map(torch.equal, said.logits, expected.logits))
        else:
            assert session.stats.kept_tokens == (24 if whole else 20)
            session.expect(49 if whole else 40)
            anew = model(said.sequences[:, :49]).logits[:, -1]
            assert torch.allclose(anew, said.logits[9], atol=1e-5)
        warned = [one.message for one in caplog.records if "drops its cache" in one.message]
        assert len(warned) == (spec != "full")
        assert all(("prompt and answer so far are" in one) == whole for one in warned)


def test_hidden_states_are_given_once_whoever_asked_for_them_first():
    model = growing()
    alone = len(growing()(input_ids=IDS, output_hidden_states=True).hidden_states)
    with restored_modules(model), torch.no_grad():
        model(input_ids=IDS, output_hidden_states=True)  # transformers hooks the model once
    with torch.no_grad(), foveate.compress(model, "kvzip:budget=40%"):
        out = model(input_ids=IDS, output_hidden_states=True)
    assert len(out.hidden_states) == alone == model.config.num_hidden_layers + 1
