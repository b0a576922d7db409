"""Drawn calls of chats and streams in three threads, with errors, interrupts and stops among them:
nothing hangs, nothing stays locked, and all that was said is stored as if nothing had happened.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any, NamedTuple

import pytest
import torch
from transformers import LogitsProcessorList

import foveate
from foveate.errors import AlreadyCompressing, FoveateError, InvalidInput
from foveate.hf.attach.model_queue import _queue_of
from foveate.hf.layer.support import foveate_layers
from foveate.prompts.messages import text_of

from .conversations import Spoken, image, words
from .families import Talker, talker

PATIENCE = 300
SEEDS = int(os.environ.get("FOVEATE_FUZZ_EXAMPLES", "0"))
SPECS = (
    "snapkv:budget=30%,window=4",
    "snapkv:budget=24KB,window=4",
    "adakv:budget=24,window=4",
    "snapkv:budget=24,window=4,when=over_budget",
)
FRAMES = "snapkv:budget=24,window=4"


class Disturbance(Exception):
    """What a streamer or logits processor of a user raises."""


class Said(NamedTuple):
    """A turn that counts: its text, the number of its image, if any, and the answer's tokens."""

    text: str
    image: int | None
    ids: tuple[int, ...]


class Raises:
    """A streamer that fails at the second token."""

    def __init__(self) -> None:
        self.put_so_far = 0

    def put(self, value: Any) -> None:
        self.put_so_far += 1
        if self.put_so_far > 2:  # the prompt comes first
            raise Disturbance

    def end(self) -> None:
        pass


def spoken(tokens: Sequence[int], happens: Callable[[], Any] | None = None) -> dict[str, Any]:
    """Arguments with which these tokens are the answer; something may happen at the second."""
    return {
        "logits_processor": LogitsProcessorList([Spoken(tokens, happens)]),
        "max_new_tokens": len(tokens),
        "eos_token_id": None,
        "do_sample": False,
    }


def fail() -> None:
    raise Disturbance


def interrupt() -> None:
    raise KeyboardInterrupt


def images_of(number: int | None) -> list[Any]:
    return [] if number is None else [image(number)]


class Talking:
    """A chat that is called at random, with its turns that count."""

    def __init__(self, who: Talker, random: Random, spec: str, path: Path):
        self.who, self.random, self.spec, self.path = who, random, spec, path
        self.chat = foveate.Chat(who.model, who.processor, spec)
        self.turns: list[Said] = []
        self.loaded = 0  # turns whose pixels are gone

    def step(self) -> None:
        calls = [self.say, self.say, self.stream, self.leave, self.stop, self.disturb, self.again]
        self.random.choice([*calls, self.fork, self.store, self.undo])()

    def drawn(self) -> tuple[str, int | None, list[int]]:
        number = self.random.randrange(10**6)
        shown = self.random.choice((None, None, 0))
        return f"Say {number}", shown, words(number, self.random.choice((2, 3, 4)))

    def say(self) -> None:
        text, shown, tokens = self.drawn()
        self.chat.say(text, images=images_of(shown), **spoken(tokens))
        self.turns.append(Said(text, shown, tuple(tokens)))

    def stream(self) -> None:
        text, shown, tokens = self.drawn()
        answer = self.chat.say(text, images=images_of(shown), stream=True, **spoken(tokens))
        "".join(answer)
        self.turns.append(Said(text, shown, tuple(tokens)))

    def leave(self) -> None:
        """Reads one piece of an answer, or none."""
        text, shown, tokens = self.drawn()
        answer = self.chat.say(text, images=images_of(shown), stream=True, **spoken(tokens))
        for _ in answer if self.random.random() < 0.5 else ():
            break
        self.turns.append(Said(text, shown, tuple(answer.answer.ids.tolist())))

    def stop(self) -> None:
        """Stops an answer from its logits processor, or before it has begun."""
        text, shown, tokens = self.drawn()
        if self.random.random() < 0.5:
            answer = self.chat.say(
                text, images=images_of(shown), **spoken(tokens, lambda: self.chat.stop())
            )
        else:
            stream = self.chat.say(text, images=images_of(shown), stream=True, **spoken(tokens))
            self.chat.stop()
            answer = stream.answer
        self.turns.append(Said(text, shown, tuple(answer.ids.tolist())))

    def disturb(self) -> None:
        """A turn that is taken back."""
        text, shown, tokens = self.drawn()
        again = lambda: self.chat.say("Again")  # noqa: E731
        for happens, kind in self.random.sample(
            [(fail, Disturbance), (interrupt, KeyboardInterrupt), (again, AlreadyCompressing)], 1
        ):
            with pytest.raises(kind):
                self.chat.say(text, images=images_of(shown), **spoken(tokens, happens))
        with pytest.raises(FoveateError):
            self.chat.say(text, images=["none.png"])

    def again(self) -> None:
        text, _, tokens = self.drawn()
        edits = self.random.random() < 0.5
        call = (lambda **how: self.chat.edit(text, **how)) if edits else self.chat.retry
        try:
            call(**spoken(tokens))
        except InvalidInput:  # pixels are needed that a loaded chat has not
            assert self.loaded or not self.turns
            return
        last = self.turns[-1]
        self.turns[-1] = Said(text if edits else last.text, last.image, tuple(tokens))

    def undo(self) -> None:
        try:
            self.chat.undo()
        except InvalidInput:
            assert self.loaded or not self.turns
            return
        self.turns.pop()
        self.loaded = min(self.loaded, len(self.turns))

    def fork(self) -> None:
        """Goes on with a fork; the other one is closed in the middle of an answer."""
        left, self.chat = self.chat, self.chat.fork()
        text, _, tokens = self.drawn()
        left.say(text, **spoken(tokens, left.close))
        with pytest.raises(InvalidInput, match="is closed"):
            left.say(text)

    def store(self) -> None:
        if self.turns:
            path = self.chat.save(self.path)
            self.chat = foveate.Chat.load(path, self.who.model, self.who.processor)
            self.loaded = len(self.turns)

    def replayed(self) -> foveate.Chat:
        """A chat in which its turns were said alone, one after the other."""
        chat = foveate.Chat(self.who.model, self.who.processor, self.spec)
        for text, shown, ids in self.turns:
            chat.say(text, images=images_of(shown), **spoken(ids))
        return chat


class Watching:
    """A stream that is called at random, with the frames that it saw."""

    def __init__(self, who: Talker, random: Random, path: Path):
        self.who, self.random, self.path = who, random, path
        self.frames: list[int] = [0]
        self.stream = self._begun()
        self.stream.see(image(0))

    def _begun(self) -> foveate.Stream:
        return foveate.Stream(self.who.model, self.who.processor, FRAMES, every=8)

    def step(self) -> None:
        tokens = words(self.random.randrange(99), 3)
        match self.random.randrange(5):
            case 0 | 1:
                number = self.random.randrange(4)
                self.stream.see(image(number))
                self.frames.append(number)
            case 2:
                self.stream.ask("What?", **spoken(tokens))
            case 3:
                with pytest.raises(Disturbance):
                    self.stream.ask("What?", streamer=Raises(), **spoken(tokens))
                with pytest.raises(Disturbance):
                    self.stream.ask("What?", **spoken(tokens, fail))
            case 4:
                path = self.stream.save(self.path)
                self.stream = foveate.Stream.load(path, self.who.model, self.who.processor)

    def replayed(self) -> foveate.Stream:
        stream = self._begun()
        for number in self.frames:
            stream.see(image(number))
        return stream


def run(seed: int, folder: Path) -> None:
    """One drawn sequence: two chats and a stream of frames, each in a thread of its own."""
    random, who = Random(seed), talker("qwen2_vl")
    spec, before = random.choice(SPECS), dict(vars(who.model))
    talking = [Talking(who, Random(seed + i), spec, folder / f"{seed}-{i}") for i in (1, 2)]
    watching = Watching(who, Random(seed + 3), folder / f"{seed}-3")
    errors: list[BaseException] = []
    steps = random.randrange(1, 5)

    def step(user: Talking | Watching) -> None:
        try:
            for _ in range(steps):
                user.step()
        except BaseException as error:
            errors.append(error)

    in_time([Thread(target=step, args=[user], daemon=True) for user in (*talking, watching)], seed)
    for error in errors:
        raise AssertionError(f"seed {seed}") from error
    assert not _queue_of(who.model), f"seed {seed}"
    assert dict(vars(who.model)) == before, f"seed {seed}"
    for user in talking:
        other = user.replayed()
        assert texts_of(user.chat) == texts_of(other), f"seed {seed}"
        assert torch.equal(user.chat._now.ids, other._now.ids), f"seed {seed}"
        assert user.chat.held[:3] == other.held[:3], f"seed {seed}"
        assert same_pairs(user.chat._now.cache, other._now.cache), f"seed {seed}"
    assert same_pairs(watching.stream._cache, watching.replayed()._cache), f"seed {seed}"


def in_time(threads: Sequence[Thread], seed: int) -> None:
    """Runs threads to their end; says where each of them is if that takes too long."""
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        if thread.is_alive():
            faulthandler.dump_traceback(sys.__stderr__)
            pytest.fail(f"seed {seed} hangs")


def texts_of(chat: foveate.Chat) -> list[tuple[str, str]]:
    """Roles and texts: a chat that was loaded has no pixels."""
    return [(message["role"], text_of(message)) for message in chat.messages]


def same_pairs(one: Any, other: Any) -> bool:
    """Whether two caches store the same columns, with the same keys and values."""
    if one is None or other is None:
        return one is other
    pairs = zip(foveate_layers(one), foveate_layers(other), strict=True)
    return all(
        torch.equal(a.pairs.padded().columns, b.pairs.padded().columns)
        and torch.allclose(a.pairs.padded().k, b.pairs.padded().k, atol=1e-5)
        and torch.allclose(a.pairs.padded().v, b.pairs.padded().v, atol=1e-5)
        for a, b in pairs
    )


def test_nothing_that_happens_to_a_call_reaches_another(tmp_path: Path) -> None:
    for seed in range(SEEDS or 4):
        run(seed, tmp_path)


@pytest.mark.slow
def test_nothing_that_happens_to_a_call_reaches_another_in_500_sequences(tmp_path: Path) -> None:
    for seed in range(1000, 1500):
        run(seed, tmp_path)
