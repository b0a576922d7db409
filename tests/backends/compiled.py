"""Decoding as it is and under ``torch.compile``; run in a process of its own, without the checks of
shapes that tests put around every function and that Dynamo cannot trace. Prints JSON.
"""

from __future__ import annotations

import json
import sys

import torch
import torch._dynamo as dynamo

import foveate
from foveate.hf.model.internals import CACHE
from tests import zoo
from tests.answers import DRAWN
from tests.jitter import WIDER

STEPS = 8


def shallow(layers):
    """A model of few layers, as tracing takes seconds for each."""
    model = zoo.fresh("llama")
    model.model.layers, model.config.num_hidden_layers = model.model.layers[:layers], layers
    return model


def answered(forward, cache, token):
    """Logits of a few steps, of that token and some others."""
    words = zoo.VOCAB - zoo.TEXT_FROM
    tokens = [zoo.TEXT_FROM + (token + 7 * step) % words for step in range(STEPS)]
    return torch.cat([forward(input_ids=one, **{CACHE: cache}).logits for one in tokens], 1)


@torch.no_grad()
def traced(spec, still):
    """Traced by Dynamo and run as it is: what a backend would compile. If ``still``, for fixed
    shapes, with a cache that does not grow.
    """
    dynamo.reset()
    dynamo.utils.counters.clear()
    model, inputs = shallow(2), zoo.prompt("llama", lengths=(40,))
    with foveate.compress(model, spec) as session:
        cache = session.prefill(**inputs)
        token = inputs["input_ids"][:, -1:].flatten()[:, None]  # strides are guarded, too
        expected = answered(model, session.fork(cache), token)
        compiled = torch.compile(model, backend="eager", dynamic=not still)
        mine = session.fixed(STEPS, cache=cache) if still else session.fork(cache)
        found = answered(compiled, mine, token)
    counted = dynamo.utils.counters
    return {
        "same": torch.allclose(found, expected, atol=1e-5 + WIDER),
        "to the bit": torch.equal(found, expected),
        "breaks": list(counted["graph_break"]),
        "graphs": counted["stats"]["unique_graphs"],
    }


def in_place(model):
    model.compile(backend="eager")


def of_forward(model):
    model.forward = torch.compile(model.forward, backend="eager")


def generated(model, inputs, spec):
    how = {"max_new_tokens": 2, "do_sample": False, "logits_processor": DRAWN}
    how |= {"output_logits": True, "return_dict_in_generate": True}
    with foveate.compress(model, spec) as session:
        said = model.generate(**inputs, **how)
    return torch.stack(said.logits), [kept.tolist() for kept in session.stats.kept]


def whole(spec, how):
    """Whether a model that was compiled before its block reads, keeps and says the same: in a
    prefill and a step of one layer.
    """
    dynamo.reset()
    model, inputs = shallow(1), zoo.prompt("llama", lengths=(40,))
    expected, kept = generated(model, inputs, spec)
    how(model)
    found, same = generated(model, inputs, spec)
    return torch.allclose(found, expected, atol=1e-5 + WIDER) and same == kept


WAYS = {
    "grows": lambda spec: traced(spec, False),
    "still": lambda spec: traced(spec, True),
    "in place": lambda spec: whole(spec, in_place),
    "forward": lambda spec: whole(spec, of_forward),
}


def main(*asked):
    """Each argument is a spec and a way, with a blank between."""
    pairs = [each.rsplit("@", 1) for each in asked]
    print(json.dumps([WAYS[way](spec) for spec, way in pairs]))


if __name__ == "__main__":
    main(*sys.argv[1:])
