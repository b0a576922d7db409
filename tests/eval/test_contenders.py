"""What the policies of a comparison are called."""

import pytest

from foveate.compression.composition import policy
from foveate.compression.labels import Named, label, named
from foveate.methods.pyramidkv import Pyramid
from foveate_lab.eval.contenders import contenders


@pytest.mark.parametrize(
    ("spec", "method", "budget"),
    [
        ("full", "full", ""),
        ("snapkv:budget=20%", "snapkv", "20%"),
        ("h2o:recent=0.2,budget=5%", "h2o:recent=0.2", "5%"),
        ("h2o:budget=64,recent=0.2", "h2o:recent=0.2", "64"),
        ("mixkv(window=4)+lookm:budget=9", "mixkv(window=4)+lookm", "9"),
        ("knorm:budget=20%,store=kivi(bits=4)", "knorm:store=kivi(bits=4)", "20%"),
        ("knorm:store=kivi(bits=4)", "knorm:store=kivi(bits=4)", ""),
        (
            "snapkv:budget=pyramid(amount=9%,beta=4),window=8",
            "snapkv:budget=pyramid(beta=4),window=8",
            "9%",
        ),
        (
            "policy:score=key_norm(),budget=uniform(amount=30%)",
            "policy:score=key_norm(),budget=uniform()",
            "30%",
        ),
    ],
)
def test_a_spec_in_two_columns(spec: str, method: str, budget: str) -> None:
    assert named(spec) == Named(method, budget)


def test_policies_that_differ_in_who_gets_the_budget_have_different_names() -> None:
    uniform = policy("policy:score=key_norm(),budget=uniform(amount=30%),select=top_k()")
    pyramid = uniform.but(budget=Pyramid(amount="30%"))
    assert label(uniform) != label(pyramid)
    assert label(pyramid) == label(pyramid.but(budget="10%"))


def test_every_method_is_asked_at_every_budget_once() -> None:
    methods = ["oracle", "snapkv:window=4", "oracle:budget=9%"]
    assert contenders(methods, ["50%", "80%"]) == [
        "oracle:budget=50%",
        "oracle:budget=80%",
        "snapkv:budget=50%,window=4",
        "snapkv:budget=80%,window=4",
    ]
