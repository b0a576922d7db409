"""A block is entered whole or not at all, and left whole, whatever fails; a copy is in no block."""

import copy
import pickle

import pytest
import torch
from torch._dynamo.eval_frame import OptimizedModule

import foveate
from foveate.errors import UnsupportedModel
from foveate.hf.attach import bookkeeping, calls
from foveate.hf.model.internals import CACHE, DynamicLayer
from tests import zoo
from tests.backends.test_attaching import fingerprint

SPEC = "snapkv:budget=50%,window=4"
STEPS = (
    "intercept",
    "forget_compiled",
    "wrap",
    "put",
    "accept_both_names",
    "register_forward_pre_hook",
    "the second wrap",
    "the second put",
)
"""Of entering a block."""


class Fault(BaseException):
    """No exception that anybody catches."""


def answers(model, inputs):
    return model.generate(**inputs, max_new_tokens=3, do_sample=False)


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.fixture
def model():
    return zoo.fresh("llama")


@pytest.fixture
def untouched(model):
    """Checks that the model answers and looks as it did, and can be compressed."""
    inputs, was, bits = zoo.prompt("llama"), fingerprint(model), weights(model)
    said = answers(model, inputs)

    def check():
        assert fingerprint(model) == was
        assert all(torch.equal(tensor, bits[name]) for name, tensor in weights(model).items())
        assert torch.equal(answers(model, inputs), said)
        with foveate.compress(model, "full"):
            assert torch.equal(answers(model, inputs), said)
        assert fingerprint(model) == was

    return check


def failing(monkeypatch, model, step, *, done):
    """Lets a step of entering fail; where it is ``done``, after its work."""
    where, name, number = calls, step.split()[-1], 2 if "second" in step else 1
    if "register" in step:
        where = model.model
    works, count = getattr(where, name), []

    def fails(*args, **kwargs):
        count.append(1)
        if len(count) != number:
            return works(*args, **kwargs)
        if done:
            works(*args, **kwargs)
        raise Fault(step)

    monkeypatch.setattr(where, name, fails)


@pytest.mark.parametrize("step", STEPS)
def test_a_fault_on_the_way_in_leaves_the_model_as_it_was(step, model, untouched, monkeypatch):
    with monkeypatch.context() as patched:
        failing(patched, model, step, done=False)
        with pytest.raises(Fault), foveate.compress(model, SPEC):
            pytest.fail("the block was entered")
    untouched()


def test_a_fault_right_after_a_step_that_has_its_way_back_changes_nothing(
    model, untouched, monkeypatch
):
    with monkeypatch.context() as patched:
        failing(patched, model, "intercept", done=True)
        with pytest.raises(Fault), foveate.compress(model, SPEC):
            pytest.fail("the block was entered")
    untouched()


@pytest.mark.parametrize("place", range(8))
def test_a_fault_on_the_way_out_does_not_stop_the_other_steps(place, model, untouched):
    def fault():
        raise Fault(place)

    session = foveate.compress(model, SPEC).__enter__()
    answers(model, zoo.prompt("llama"))
    steps = session._calls._undo
    assert len(steps._exit_callbacks) >= 9
    steps.callback(fault)
    steps._exit_callbacks.rotate(place)
    with pytest.raises(Fault):
        session.__exit__(None, None, None)
    untouched()


@pytest.mark.parametrize(
    ("of", "name"),
    [
        *((calls.Calls, name) for name in ("_call_outer", "_call_decoder", "_read")),
        *((calls.Calls, name) for name in ("_generate", "_prepare")),
        *((bookkeeping.PassNotes, name) for name in ("begin", "after")),
    ],
)
def test_a_fault_in_any_call_leaves_the_model_as_it_was(of, name, model, untouched, monkeypatch):
    works = getattr(of, name)

    def fails(*args, **kwargs):
        works(*args, **kwargs)
        raise Fault(name)

    with monkeypatch.context() as patched:
        patched.setattr(of, name, fails)
        with pytest.raises(Fault), foveate.compress(model, SPEC):
            answers(model, zoo.prompt("llama"))
    untouched()


def test_a_part_of_a_model_is_refused_and_the_whole_is_as_it_was(model, untouched):
    with pytest.raises(UnsupportedModel, match=r"LlamaModel has no generate\(\)"):
        foveate.compress(model.model, SPEC)
    untouched()


def test_the_model_in_a_compiled_wrapper_is_compressed(model, untouched):
    wrapped = OptimizedModule(model, lambda function: function)
    with foveate.compress(wrapped, SPEC) as session:
        answers(wrapped, zoo.prompt("llama"))
        assert session.stats.kept_tokens == 20
    untouched()


@pytest.mark.parametrize("family", ["llama", "llava"])
def test_a_copy_made_in_a_block_is_a_stock_model_and_the_block_goes_on(family):
    model, inputs = zoo.fresh(family), zoo.prompt(family)
    stock, was = answers(model, inputs), fingerprint(model)
    with foveate.compress(model, "random:budget=20%") as session:
        in_a_list = copy.deepcopy([model])[0]
        answers(model, inputs)
        assert session.stats.kept_tokens < session.stats.seen
        assert torch.equal(answers(in_a_list, inputs), stock)
    assert fingerprint(in_a_list).keys() == was.keys()
    assert fingerprint(in_a_list)["hooks"] == was["hooks"]
    assert fingerprint(in_a_list)["configs"] == was["configs"]
    with foveate.compress(in_a_list, "full"):
        assert torch.equal(answers(in_a_list, inputs), stock)


def test_what_would_take_the_block_along_is_refused_by_name(model, tmp_path):
    inputs = zoo.prompt("llama")
    with foveate.compress(model, SPEC):
        part, layer = copy.deepcopy(model.model), copy.deepcopy(model.model.layers[0])
        with pytest.raises(UnsupportedModel, match="cannot be pickled inside"):
            pickle.dumps(model)
        model.save_pretrained(tmp_path)
        stock = part(**inputs)
        assert type(stock[CACHE].layers[0]) is DynamicLayer
        assert not layer._forward_pre_hooks
    assert type(model).from_pretrained(tmp_path).config._attn_implementation == "sdpa"


def test_another_model_of_the_same_configuration_stays_stock(model):
    inputs, other = zoo.prompt("llama"), type(model)(model.config).eval()
    said = answers(other, inputs)
    with foveate.compress(model, SPEC):
        assert torch.equal(answers(other, inputs), said)
