"""Caches of prompts that were read alone, joined: each row goes on as it does by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

import foveate
from foveate.errors import UnsupportedModel, UnsupportedPolicy
from foveate.hf import branch, record
from foveate.hf.measuring.answer import check_joins, check_places, join, next_inputs
from foveate.hf.model.internals import CACHE
from tests import zoo
from tests.conformance.compare import TOLERANCE

LENGTHS = (40, 29, 35)
SPECS = {
    "full": "full",
    "equal heads": "snapkv:budget=50%,window=4",
    "equal in all rows": "knorm:budget=12",
    "other heads": "adakv:budget=50%,window=4",
    "softmax-n": "csp:budget=50%",
    "one row whole": "adakv:budget=32,window=4",
}
FAMILIES = ("llava", "qwen2_vl", "paligemma")
"""Positions are counted, on three axes, or from 1."""


def alone(model: Any, cache: DynamicCache, tokens: Sequence[Tensor]) -> Tensor:
    """The model counts positions itself."""
    return torch.cat([model(input_ids=some, **{CACHE: cache}).logits for some in tokens], 1)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_rows_go_on_as_alone(family: str, spec: str) -> None:
    """In passes of several tokens and of one, without a row that has ended; and the caches that
    were joined stay as they were.
    """
    model, batch = zoo.build(family), zoo.prompt(family, lengths=LENGTHS)
    each = [zoo.row(family, batch, n) for n in range(len(LENGTHS))]
    recordings = [record(model, **inputs) for inputs in each]
    ids = torch.randint(20, 80, (3, 5), generator=torch.Generator().manual_seed(0))
    next_ids, ends = ids[:, :1] + 1, dict[int, Tensor]()
    with foveate.compress(model, spec) as session:
        caches = [branch(session, one) for one in recordings]
        check_places(session, caches[0], ids[0, :1])
        joined = join(session, caches)
        parts = ids.split([3, 1, 1], dim=1)
        found = torch.cat([model(**next_inputs(joined, some)).logits for some in parts], 1)
        for n, (one, cache) in enumerate(zip(recordings, caches, strict=True)):
            one.noted.put_back()
            expected = alone(model, cache, [some[n : n + 1] for some in parts])
            assert (found[n : n + 1] - expected).abs().max() <= TOLERANCE
            ends[n] = alone(model, cache, [next_ids[n : n + 1]])
        left = torch.tensor([0, 2])  # the longest and another, so that its padding counts
        joined.batch_select_indices(left)
        ending = model(**next_inputs(joined, next_ids[left])).logits
        assert (ending - torch.cat([ends[0], ends[2]])).abs().max() <= TOLERANCE
    assert len({inputs["input_ids"].shape[1] for inputs in each}) == len(LENGTHS)


@pytest.mark.parametrize(
    ("family", "why"),
    [("gemma3_text", "more, or less, than the pairs of all tokens"), ("mllama", "all tokens")],
)
def test_a_model_whose_layers_hold_more_is_refused(family: str, why: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"cannot be decoded together.*{why}"):
        check_joins(zoo.build(family))


def test_frequencies_that_follow_the_longest_prompt_are_refused() -> None:
    model = zoo.fresh("llama")
    model.config.rope_parameters["rope_type"] = "dynamic"
    with pytest.raises(UnsupportedModel, match="longest prompt"):
        check_joins(model)


def test_positions_of_another_kind_are_refused() -> None:
    """A model that moves its positions by itself, and takes those that it is given as they are."""
    model = zoo.fresh("llama")
    recording = record(model, **zoo.prompt("llama"))

    def moved(_: Any, args: Any, given: dict[str, Any]) -> Any:
        if given.get("position_ids") is None:
            given = {**given, "position_ids": torch.tensor([[given[CACHE].get_seq_length() + 2]])}
        return args, given

    with foveate.compress(model, "full") as session:
        cache = branch(session, recording)
        check_places(session, cache, torch.tensor([20]))
        model.model.register_forward_pre_hook(moved, with_kwargs=True)
        with pytest.raises(UnsupportedModel, match="computes other positions"):
            check_places(session, cache, torch.tensor([20]))


def test_places_are_told_apart_in_half_precision() -> None:
    """Which rounds more than the check lets pass, wherever not the very same is computed."""
    model = zoo.fresh("llama").to(torch.bfloat16)
    recording = record(model, **zoo.prompt("llama"))
    with foveate.compress(model, "full") as session:
        check_places(session, branch(session, recording), torch.tensor([20]))


@pytest.mark.parametrize(
    "spec",
    ["h2o:budget=50%,when=over_budget", "snapkv:budget=50%,window=4,store=kivi(bits=4,residual=4)"],
)
def test_what_changes_while_decoding_or_is_held_in_codes_is_refused(spec: str) -> None:
    model = zoo.build("llama")
    recording = record(model, **zoo.prompt("llama"))
    with foveate.compress(model, spec) as session:
        cache = branch(session, recording)
        with pytest.raises(UnsupportedPolicy, match="cannot be decoded together"):
            join(session, [cache, cache])
