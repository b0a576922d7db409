"""A call that is cut short, wherever it is, holds nobody up and leaves nothing that it was told."""

import contextlib
import ctypes
import gc
import os
import random
import signal
import sys
import threading
import time

import pytest
import torch
from transformers import DynamicCache

import foveate
from foveate.errors import UnsupportedCache
from foveate.hf.layer import interface
from foveate.hf.model.internals import CACHE
from tests import zoo
from tests.backends.interrupting import (
    ANSWER,
    PATIENCE,
    SCENES,
    SPEC,
    Interrupt,
    Lines,
    elsewhere,
    equal,
    scene,
    told,
)


def sampled(inside, count, generator):
    """Lines to interrupt: 19 of 20 inside a pass, the others anywhere."""
    within = [place for place, one in enumerate(inside) if one]
    return [
        generator.choice(within) if number % 20 else generator.randrange(len(inside))
        for number in range(count)
    ]


def check(name, count):
    """Interrupts a scene so many times, with a second thread that waits for its turn; returns how
    many interrupts fell inside a pass.
    """
    model, spec, did = scene(name)
    block = foveate.compress(model, spec) if spec else contextlib.nullcontext()
    with block as session:
        expected = did(model, session)
        with Lines() as lines:
            assert equal(did(model, session), expected)
        beside = expected if spec else elsewhere()

        def second():
            return did(model, session) if spec else elsewhere()

        for place in sampled(lines.inside, count, random.Random(name)):
            waiting = []

            def interrupt(waiting=waiting, second=second):
                waiting.append(told(second))
                time.sleep(0.002)
                raise Interrupt

            try:
                with Lines(place, interrupt):
                    did(model, session)
            except Interrupt as error:
                kept = error  # and with it the frames of all that was called
            assert equal(waiting[0](), beside)
            if not spec:
                del kept  # a block whose __exit__ never began ends with its session
            assert equal(did(model, session), expected), (name, place)
    with foveate.compress(model, "full"):  # the block was left whole
        pass
    assert not interface._open
    return sum(lines.inside[place] for place in sampled(lines.inside, count, random.Random(name)))


@pytest.mark.parametrize("name", SCENES)
def test_a_call_that_is_interrupted_anywhere_leaves_nothing(name):
    assert check(name, 8) >= 7


@pytest.mark.slow
def test_three_hundred_interrupts_leave_nothing():
    assert sum(check(name, 75) for name in SCENES) >= 270


def test_a_block_whose_exit_never_began_ends_with_its_session(monkeypatch):
    model = zoo.fresh("llama")

    def read():
        with foveate.compress(model, SPEC) as session:
            session.prefill(**zoo.prompt("llama"))

    with monkeypatch.context() as patched:
        patched.setattr(type(foveate.compress(model, SPEC)), "__exit__", fails(Interrupt))
        with pytest.raises(Interrupt) as caught:
            read()
    del caught
    gc.collect()
    assert "forward" not in vars(model)
    read()


@contextlib.contextmanager
def stopping(model, stop):
    """Does something in the middle of the second pass from now on."""
    layer, passes = model.get_decoder().layers[1], []

    def before(*_):
        passes.append(1)
        if len(passes) == 2:
            stop()

    hook = layer.register_forward_pre_hook(before)
    yield
    hook.remove()


def fails(kind):
    def fail(*_, **__):
        raise kind

    return fail


def signalled():
    def handler(number, frame):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, handler)
    signal.raise_signal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, before)


def of_another_thread():
    """As time limits of some servers do it."""
    mine = ctypes.c_ulong(threading.get_ident())
    wait = told(
        lambda: ctypes.pythonapi.PyThreadState_SetAsyncExc(mine, ctypes.py_object(Interrupt))
    )
    wait()
    time.sleep(0.01)


WAYS = {
    "the stop button": fails(KeyboardInterrupt),
    "an exit": fails(SystemExit),
    "a signal handler": signalled,
    "another thread": of_another_thread,
    "a generator that is closed": fails(GeneratorExit),
    "an exception": fails(ValueError),
}


@pytest.mark.parametrize("stop", WAYS.values(), ids=WAYS)
def test_whatever_ends_a_call_another_thread_has_its_turn_at_once(stop):
    model, inputs = zoo.build("llava"), zoo.prompt("llava")
    with foveate.compress(model, SPEC) as session:
        expected = model.generate(**inputs, **ANSWER)
        with stopping(model, stop), pytest.raises(BaseException) as caught:  # noqa: PT011
            model.generate(**inputs, **ANSWER)
        assert not isinstance(caught.value, AssertionError)
        began = time.monotonic()
        wait = told(lambda: model.generate(**inputs, **ANSWER).logits)
        assert equal(list(wait()), list(expected.logits))
        assert time.monotonic() - began < PATIENCE / 2
        embeds = model.get_input_embeddings()(inputs["input_ids"])
        assert session.prefill(inputs_embeds=embeds).layers[0].state.images() is None


def test_a_cache_of_a_pass_that_was_cut_short_is_refused_and_a_fork_goes_on(monkeypatch):
    model, inputs = zoo.fresh("llama"), zoo.prompt("llama")
    more = zoo.extend("llama", inputs, new_text=3).cached
    with foveate.compress(model, SPEC) as session:
        cache = session.prefill(**inputs)
        fork = session.fork(cache)
        expected = model.generate(**more, **{CACHE: session.fork(cache)}, **ANSWER).logits
        with monkeypatch.context() as patched:
            patched.setattr(model.model.layers[1], "forward", fails(Interrupt))
            with pytest.raises(Interrupt):
                model.generate(**more, **{CACHE: cache}, **ANSWER)
        with pytest.raises(UnsupportedCache, match="cut short"):
            model.generate(**more, **{CACHE: cache}, **ANSWER)
        assert equal(list(model.generate(**more, **{CACHE: fork}, **ANSWER).logits), list(expected))


def test_a_pass_that_is_refused_before_it_is_read_takes_nothing_along():
    model, ids = zoo.fresh("llama"), zoo.prompt("llama")["input_ids"]
    wrong = {"input_ids": ids[:, 20:], "attention_mask": torch.tensor([[1] * 35 + [0] * 5])}
    with foveate.compress(model, SPEC) as session:
        cache = session.prefill(input_ids=ids[:, :20])
        session.rearm(cache)
        session.expect(40)
        with pytest.raises(foveate.FoveateError, match="left"):
            model(**wrong, **{CACHE: cache})
        assert session.stats.seen == 20
        new = DynamicCache(config=model.config)  # the length that was declared still counts
        for part in ids.split(20, dim=1):
            model(part, **{CACHE: new})
        assert session.cache is new
        assert session.stats.seen == 40
        model(ids[:, 20:], **{CACHE: cache})  # and it is still to be compressed
        assert session.cache is cache
        assert session.stats.seen == 40
        assert session.stats.kept_tokens == 20


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_that_is_forked_in_the_middle_of_a_call_does_not_wait_for_it():
    model, inputs = zoo.build("llama"), zoo.prompt("llama")
    reads, goes_on = threading.Event(), threading.Event()

    def stop():
        call = interface._turn.take(sys._getframe())  # as if it entered another block
        reads.set()
        goes_on.wait(PATIENCE)
        call.end()

    with foveate.compress(model, SPEC):
        expected = model.generate(**inputs, **ANSWER).logits
        with stopping(model, stop):
            wait = told(lambda: model.generate(**inputs, **ANSWER).logits)
            assert reads.wait(PATIENCE)
        if not (child := os.fork()):
            signal.alarm(PATIENCE)
            with foveate.compress(zoo.build("llava"), SPEC):
                said = model.generate(**inputs, **ANSWER).logits
            os._exit(0 if equal(list(said), list(expected)) else 1)
        goes_on.set()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert equal(list(wait()), list(expected))


def test_a_length_that_was_declared_is_that_of_one_prompt():
    model, ids = zoo.fresh("llama"), zoo.prompt("llama")["input_ids"]
    with foveate.compress(model, SPEC) as session:
        session.expect(20)
        for prompt in (ids[:, :20], ids):
            model(prompt, **{CACHE: DynamicCache(config=model.config)})
            assert session.stats.seen == prompt.shape[1]
            assert session.stats.kept_tokens == prompt.shape[1] // 2
