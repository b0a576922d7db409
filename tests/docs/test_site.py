"""The API reference has the whole public surface; `make docs` checks its links and docstrings."""

import re
from pathlib import Path

import foveate

API = Path(__file__).parents[2] / "docs" / "api"


def test_every_public_name_stands_in_the_api_reference():
    text = "\n".join(page.read_text(encoding="utf-8") for page in sorted(API.glob("*.md")))
    shown = set(re.findall(r"^::: foveate\.(\w+)", text, flags=re.MULTILINE))
    elsewhere = {
        *foveate.METHODS,  # each has a page of its own
        "METHODS",  # a mapping: its class is shown
        "FoveateError",  # with all other errors
        "stages",  # package by package
    }
    assert shown >= set(foveate.__all__) - elsewhere
    assert "::: foveate.core.method.Methods" in text
    packages = set(re.findall(r"^::: foveate\.stages\.(\w+)$", text, flags=re.MULTILINE))
    assert packages == set(foveate.stages.__all__)
