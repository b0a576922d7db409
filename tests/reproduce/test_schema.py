"""The files of experiments hold what their dataclasses declare, and name nothing in vain."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from foveate_lab.reproduce import EXPERIMENTS, FACTS
from foveate_lab.reproduce.models import MODELS
from foveate_lab.reproduce.registry import PAPERS
from foveate_lab.reproduce.resources import toml
from tests.core.users import unchecked

ALL = [*EXPERIMENTS.values(), *FACTS.values(), *MODELS.values()]


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type as it is declared, with all that it holds."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin is Literal:
        return value in arguments
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in arguments)
    if origin is tuple and arguments[-1] is not ...:
        return len(value) == len(arguments) and all(map(fits, value, arguments))
    if origin is tuple:
        return isinstance(value, tuple) and all(fits(one, arguments[0]) for one in value)
    if origin in (Mapping, dict):
        keys, values = arguments
        return all(fits(key, keys) and fits(one, values) for key, one in value.items())
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def mistaken(value: Any, at: str = "") -> list[str]:
    """Paths of the fields, and of those of their fields, that are of another type."""
    if not hasattr(type(value), "__annotations__") or not hasattr(value, "__match_args__"):
        return []
    found = []
    for name, hint in get_type_hints(type(value)).items():
        one = getattr(value, name)
        if name != "of" and not fits(one, hint):
            found.append(f"{at}.{name}: {one!r}")
        each = one if isinstance(one, tuple) and not hasattr(one, "_fields") else (one,)
        found += [more for each_one in each for more in mistaken(each_one, f"{at}.{name}")]
    return found


@pytest.mark.parametrize("one", ALL, ids=lambda one: getattr(one, "id", ""))
def test_every_field_is_of_its_type(one):
    assert mistaken(one) == []


def test_a_field_of_another_type_is_found():
    one = EXPERIMENTS["csp:fig6"]
    with unchecked():
        arms = (dataclasses.replace(one.trial.arms[0], models="llava"),)
        trial = dataclasses.replace(one.trial, arms=arms, samples="20")
        wrong = dataclasses.replace(one, trial=trial, models=("m", 7))
    assert mistaken(wrong) == [
        ".models: ('m', 7)",
        ".trial.arms.models: 'llava'",
        ".trial.samples: '20'",
    ]


@pytest.mark.parametrize("paper", PAPERS)
def test_what_is_named_is_used_and_sentences_are_no_names(paper):
    text = (
        files("foveate_lab.reproduce").joinpath("experiments", f"{paper}.toml").read_text("utf-8")
    )
    raw = tomllib.loads(text)
    entries = str([raw["experiments"], raw["open"]])
    for kind in ("points", "texts", "arms", "columns", "calibrations"):
        for key in raw.get(kind, ()):
            assert f"'{key}'" in entries, (kind, key)
    for one in raw["experiments"]:
        for text in (*one.get("departs", ()), *one.get("bring", ())):
            assert " " in text or text in raw["texts"]


@pytest.mark.parametrize("kind", ["points", "arms", "columns"])
def test_what_is_shared_is_of_several_papers(kind):
    for key in toml("shared")[kind]:
        naming = [p for p in PAPERS if f"'{key}'" in str(toml(p)["experiments"])]
        assert len(naming) > 1, key
