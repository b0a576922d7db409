"""A budget over all layers lets pairs go before all are read: what is kept is the very same."""

import copy
from functools import cache

import pytest
import torch

import foveate
from foveate.hf.layer import support
from foveate.hf.layer.cache_layer import FoveateLayer
from foveate.hf.layer.support import foveate_layers
from tests import zoo

SPECS = (
    "recommended:budget=20%",
    "recommended:budget=9,sinks=2,recent=3",
    "snapkv(window=4)+kvzip.budget(floor=0.3):budget=30%",
    "h2o+kvzip.budget:budget=25%",
    "simlayerkv:budget=30%",
    "simlayerkv:budget=25%,recent=3,when=over_budget(every=2)",
    "keyformer+kvzip.budget:budget=25%,when=over_budget(every=2)",
)


@cache
def deep():
    """A model of eight layers, two thirds of which have to wait for the last."""
    config = copy.deepcopy(zoo.build("llama").config)
    config.num_hidden_layers, config.layer_types = 8, ["full_attention"] * 8
    torch.manual_seed(0)
    return type(zoo.build("llama"))(config).eval()


PROMPTS = {"alone": (60,), "left-padded": (31, 60, 44)}


def held(model, inputs, spec, monkeypatch, *, early):
    """Columns, pairs and what decoding says, and how many layers were stored how often."""
    stored = []
    with monkeypatch.context() as patch:
        if not early:
            patch.setattr(support, "most_kv_heads", lambda config: None)
        keep = FoveateLayer.keep
        patch.setattr(FoveateLayer, "keep", lambda s, k: (stored.append(s.ordinal), keep(s, k)))
        with foveate.compress(model, spec) as session, torch.no_grad():
            answer = model.generate(
                **inputs,
                max_new_tokens=4,
                min_new_tokens=4,
                do_sample=False,
                output_logits=True,
                return_dict_in_generate=True,
            )
            layers = [layer.pairs.padded() for layer in foveate_layers(session.cache)]
            return stored[: -len(layers)], layers, answer.logits, session.stats.kept


@pytest.mark.parametrize("lengths", PROMPTS.values(), ids=PROMPTS)
@pytest.mark.parametrize("spec", SPECS)
def test_what_goes_early_would_have_gone_in_the_end(spec, lengths, monkeypatch):
    model = deep()
    inputs = zoo.prompt("llama", lengths=lengths)
    early, *mine = held(model, inputs, spec, monkeypatch, early=True)
    never, *theirs = held(model, inputs, spec, monkeypatch, early=False)
    assert len(set(early)) > 2
    assert not never or "every=2" in spec
    for one, other in zip(mine[0], theirs[0], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(mine[1], theirs[1], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(mine[2], theirs[2], strict=True))
