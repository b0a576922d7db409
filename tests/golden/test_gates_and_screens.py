"""The gate of Fast KVzip and the scores of STaR-KV are those of the authors' code."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import foveate
from foveate.compression.pipeline import keep, score
from foveate.compression.tensors import layers_of
from foveate.methods.fast_kvzip import Gate, HiddenGate
from foveate.profiles.author_gates import read_gates
from tests.profiles import saved_tensors

from .vectors import load


def test_the_gate_is_that_of_the_release(tmp_path):
    given, args = load("fastkvzip")
    published = {
        name.removeprefix("gate."): t for name, t in given.items() if name.startswith("gate.")
    }
    torch.save({"module": [published]}, tmp_path / "gates.pt")
    (tensors,) = read_gates(tmp_path / "gates.pt")
    scores = Gate(**tensors)(given["hidden"])
    assert_close(scores, given["score"], rtol=1e-5, atol=1e-6)
    path = saved_tensors(tmp_path, "fast_kvzip", [tensors])
    k = torch.zeros(1, args["nhead"], given["hidden"].shape[1], 4)
    q = k.repeat_interleave(args["ngroup"], 1)
    (layer,) = layers_of([(q, k, k)], hidden_states=[given["hidden"]])
    gate = HiddenGate(profile=str(path))
    first = replace(layer, k=k[:, :, :7], hidden=given["hidden"][:, :7])
    state = {"gate": torch.nn.functional.pad(gate.observe(first)["gate"], (0, 13))}
    rest = replace(layer, hidden=given["hidden"][:, 7:], state=state)
    assert_close(gate.observe(rest)["gate"], given["score"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["screen", "screens"])
def test_the_scores_of_screenshots_are_those_of_the_release(name):
    """The screens are three: what is older counts less. MI and temporal state are one prompt's."""
    given, args = load(f"starkv_{name}")
    vision = torch.zeros(1, args["n"], dtype=torch.bool)
    for start, end in given["spans"].tolist():
        vision[0, start:end] = True
    (layer,) = layers_of(
        [(given["q"], given["k"], given["k"])], vision, hidden_states=[given["hidden"]]
    )
    policy = foveate.star_kv(budget=args["capacity"], window=args["window"])
    layer = replace(layer, state=policy.score.observe(layer))
    values = policy.score(layer).values
    past = args["n"] - args["window"]
    assert len(values.unique(dim=1)[0]) == 1
    assert_close(values[0, 0, :past], given["values"], rtol=1e-4, atol=1e-6)
    slots = layer.slots.with_budget(torch.tensor([args["capacity"]]))
    (kept,) = keep(policy, [score(policy, replace(layer, slots=slots))])
    assert kept.positions(0, 0).tolist() == given["kept"].tolist()
