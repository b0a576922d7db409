"""What a paper says is what is run, and is not listed as open.

A line of SAID: experiments, the line of the paper's plain text, a few words of it, what an open
point about it would name, and what of the experiments holds it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import foveate
from foveate_lab.reproduce import EXPERIMENTS
from foveate_lab.reproduce.experiment import Experiment
from foveate_lab.reproduce.published import PublishedProfile


class Said(NamedTuple):
    """See above. ``run`` gives what is run of one experiment, which is to be ``wanted``."""

    ids: str
    line: int
    quote: str
    subject: str
    run: Callable[[Experiment], Any]
    wanted: Any


def every(name, find="."):
    """The values of an argument in all specs of an experiment that hold it."""
    values = re.compile(rf"\b{name}=([^,):]+)")
    return lambda one: {
        value
        for spec in one.trial.specs()
        if re.search(find, spec)
        for value in values.findall(spec)
    }


def estimated(one):
    return {c.samples for c in one.calibrations.values() if not isinstance(c, PublishedProfile)}


def pyramid(one):
    return {arm.spec.partition("(")[0] for arm in one.trial.arms if arm.name == "Pyramid"}


def of_trial(name):
    return lambda one: getattr(one.trial, name)


SAID = (
    Said(
        "prefixkv:table1",
        143,
        "a curated subset of 1000",
        "number of samples",
        of_trial("samples"),
        1000,
    ),
    Said(
        "prefixkv:table[1246]",
        145,
        "10 random samples from the training set",
        "samples of the estimate",
        estimated,
        {10},
    ),
    Said(
        "prefixkv:table[124]",
        178,
        "we integrate it in the baseline",
        "what Pyramid",
        pyramid,
        {"prefixkv:budget=pyramid"},
    ),
    Said(
        "prefixkv:table14-.*",
        246,
        "the KV cache size budget to 128",
        "budget",
        of_trial("budgets"),
        ("128",),
    ),
    Said(
        "prefixkv:table16",
        434,
        "under 50% compression budget",
        "budget",
        of_trial("budgets"),
        ("50%",),
    ),
    Said(
        "csp:(table[123].*|fig1a|fig4|fig6)",
        170,
        "we set  $n = 1$",
        "value of n",
        every("n", "^csp"),
        {"1.0"},
    ),
    Said(
        "csp:table1-.*",
        213,
        "biases of 0.5 and 1.5 in EgocentricNavigation",
        "values of the bias",
        lambda one: {
            foveate.policy(arm.spec_for(task, one.models[0]).replace("{B}", "20%")).select.recent
            / 0.5
            for arm in one.trial.arms
            if arm.name == "CSP"
            for task in one.trial.tasks()
            if "Egocentric" in task or "SlideVQA" in task
        },
        {0.5, 1.5},
    ),
    Said(
        "csp:table2",
        285,
        "using LLaVA-v1.5-7b tested",
        "^model",
        lambda one: one.models,
        ("llava-1.5-7b",),
    ),
    Said(
        "david:table[1236]",
        174,
        "set the sparsity rate to 0.2",
        "^budget of",
        of_trial("budgets"),
        ("20%",),
    ),
    Said(
        "david:table1",
        174,
        "is set to 2 for OCRBench and MMVet",
        "value of rho",
        every("rho"),
        {"2.0"},
    ),
    Said(
        "david:table2",
        174,
        "is set to 2 for OCRBench and MMVet",
        "value of rho",
        every("rho"),
        {"2.0"},
    ),
    Said(
        "david:table5",
        225,
        "the first 20 samples from the MathVista",
        "samples",
        of_trial("samples"),
        20,
    ),
    Said(
        "lookm:table[17]-.*",
        161,
        "with recent ratio $\\alpha_1 = 0.1$",
        "recent ratio",
        every("recent", "^lookm"),
        {"0.5"},
    ),
    Said("lookm:table4", 364, "first 20", "number of samples", of_trial("samples"), 20),
    Said(
        "mixkv:table1",
        244,
        "does not provide head importance scores for InternVL",
        "whether SparseMM",
        lambda one: {
            m for arm in one.trial.arms if arm.name.startswith("SparseMM") for m in arm.models
        },
        {"llava-next-mistral-7b", "qwen2-vl-7b"},
    ),
)


def of(said):
    return [one for name, one in EXPERIMENTS.items() if re.fullmatch(said.ids, name)]


@pytest.mark.parametrize("said", SAID, ids=lambda said: f"{said.ids}-L{said.line}")
def test_what_a_paper_says_is_run_and_not_open(said):
    found = of(said)
    assert found
    for one in found:
        assert said.run(one) == said.wanted, (one.id, said.quote)
        assert not [each for each in one.unstated if re.search(said.subject, each.what)], one.id
