"""What a stream held after every frame, in columns that count everything: for the masked oracle."""

from __future__ import annotations

from contextlib import contextmanager

import torch

from foveate.hf.layer.support import foveate_layers, known_state
from foveate.hf.model.internals import CACHE
from foveate.stream import stream as module
from tests.conformance.oracle import Event


class Watch:
    """Follows one stream. ``true`` says which column of all each column of the cache is."""

    def __init__(self, stream):
        self.stream, self.true, self.events = stream, torch.zeros(0, dtype=torch.long), []
        self.forgot, self.tokens = [], 0

    def note(self, tokens):
        """After a chunk that ended at so many tokens."""
        cache = self.stream._cache
        self.true = torch.cat([self.true, torch.arange(self.tokens, tokens)])
        self.tokens = tokens
        for held in self.forgot:
            self.true = self.true[held]
        self.forgot.clear()
        kept = {}
        for layer in foveate_layers(cache):
            columns = layer.pairs.columns
            mask = torch.zeros(*columns.shape[:2], tokens, dtype=torch.bool)
            for head, places in enumerate(columns[0]):
                mask[0, head, self.true[places[places >= 0]]] = True
            kept[layer.model_index] = mask
        assert layer.seen == len(self.true)
        assert known_state(cache).tokens.forgotten == tokens - len(self.true)
        self.events.append(Event(tokens, kept))


@contextmanager
def watched(monkeypatch, stream):
    """A :class:`Watch` that knows what the stream forgets."""
    watch = Watch(stream)
    own = module.forget

    def forget(cache):
        held = own(cache)
        if held is not None:
            watch.forgot.append(held)
        return held

    with monkeypatch.context() as patched:
        patched.setattr(module, "forget", forget)
        yield watch


@contextmanager
def logits_of(model):
    """The logits after every pass of the model, but for those that do not stay."""
    found = []

    def after(module, args, kwargs, output):
        if known_state(kwargs[CACHE]).reread is None:
            found.append(output.logits[0, -1].clone())

    hook = model.register_forward_hook(after, with_kwargs=True)
    try:
        yield found
    finally:
        hook.remove()
