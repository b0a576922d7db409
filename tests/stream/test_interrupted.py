"""A stream that was interrupted while it read is refused at every exit, and so are its files."""

from __future__ import annotations

import copy

import pytest

from foveate.errors import InvalidInput, UnsupportedCache
from foveate.hf.endless.endless import finish
from foveate.hf.layer.support import known_state
from foveate.stream import Stream
from foveate.stream import stream as module
from tests.stream import tiny
from tests.stream.test_stream import ASKED, drawn_frame

POLICY = "snapkv:budget=24,window=4"


def begun():
    stream = Stream(tiny.model(), tiny.processor(), POLICY, every=6)
    for number in range(3):
        stream.see(drawn_frame(number))
    return stream


def interrupt(*args, **kwargs):
    raise KeyboardInterrupt


def interrupted(stream, monkeypatch, where):
    """The stream, after an interrupt in a call of ``see``."""
    owner, name = where
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, interrupt)
        with pytest.raises(KeyboardInterrupt):
            stream.see(drawn_frame(3))
    return stream


def second_layer():
    return tiny.model().model.language_model.layers[1], "forward"


@pytest.mark.parametrize("where", [second_layer, lambda: (module, "forget")])
def test_every_exit_refuses_it_and_the_saved_file_stays(where, tmp_path, monkeypatch):
    """In the middle of a pass, and between the pass and what is counted of it."""
    monkeypatch.setattr(module, "_FORGETS", -100)
    stream = begun()
    path = stream.save(tmp_path / "stream.safetensors")
    content = path.read_bytes()
    interrupted(stream, monkeypatch, where())
    exits = {
        "save": lambda: stream.save(path),
        "ask": lambda: stream.ask("what?", **ASKED),
        "see": lambda: stream.see(drawn_frame(3)),
        "held": lambda: stream.held,
    }
    for leave in exits.values():
        with pytest.raises(UnsupportedCache, match=r"interrupted .*Stream.load.*close\(\)"):
            leave()
    assert path.read_bytes() == content
    assert Stream.load(path, stream.model, stream.processor).held.images == 3
    stream.close()
    assert stream.see(drawn_frame(0)).images == 1


def test_an_interrupt_before_the_decoder_reads_leaves_it_as_it_was(monkeypatch):
    stream, other = begun(), begun()
    interrupted(stream, monkeypatch, (tiny.model().model.visual, "forward"))
    for each in (stream, other):
        each.see(drawn_frame(3))
    answers = [each.ask("what?", **ASKED).ids.tolist() for each in (stream, other)]
    assert answers[0] == answers[1]


def test_a_session_saves_forks_and_fixes_no_cache_that_was_cut(tmp_path, monkeypatch):
    stream = interrupted(begun(), monkeypatch, second_layer())
    cache, session = stream._cache, stream._session
    for leave in (
        lambda: session.save(tmp_path / "cut", cache=cache),
        lambda: session.fork(cache),
        lambda: session.fixed(4, cache=cache),
        lambda: session.adopt(cache),
    ):
        with pytest.raises(UnsupportedCache, match="cut short"):
            leave()
    assert not list(tmp_path.iterdir())


def test_a_file_of_a_cut_cache_is_refused(tmp_path, monkeypatch):
    """As earlier versions wrote them."""
    stream = interrupted(begun(), monkeypatch, second_layer())
    cache = copy.deepcopy(stream._cache)
    finish(cache)
    known_state(cache).ongoing = None
    path = stream._session.save(tmp_path / "cut", cache=cache)
    with stream._session as session, pytest.raises(InvalidInput, match=r"layers have read \d+ to"):
        session.load(path)
