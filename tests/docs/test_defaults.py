"""The page of defaults has every method, with the defaults that it really has."""

import sys
from pathlib import Path

import pytest

import foveate
from foveate.policies.spec import print_value

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def defaults(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "scripts"))
    import defaults

    yield defaults
    sys.modules.pop("defaults")


def rows(table):
    return {row.split("`")[1]: row for row in table.splitlines() if row.startswith("| `")}


def test_every_method_has_a_row_that_says_where_its_defaults_are_from(defaults):
    found = rows(defaults.table())
    assert list(found) == list(foveate.METHODS)
    for name, method in foveate.METHODS.items():
        given = [key for key, one in method.parameters.items() if one.default is not one.empty]
        unsaid = given and not method.docs.defaults and method.paper
        assert not unsaid, f"{name}: say in its docstring, under Defaults:, where they are from"


def test_a_row_names_the_defaults_of_the_method(defaults):
    found = rows(defaults.table())
    assert "| 32 | 5, avg | `group=mean` |" in found["snapkv"]
    assert "| 8 | 7, max | `beta=20," in found["pyramidkv"]
    for name, method in foveate.METHODS.items():
        for key, parameter in method.parameters.items():
            if key not in defaults.SHOWN_APART and parameter.default is not parameter.empty:
                assert f"{key}={print_value(parameter.default)}" in found[name]
