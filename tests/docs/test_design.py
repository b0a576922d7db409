"""The walk through one prefill that docs/design.md describes is the one that is taken."""

import ast
import re
import sys
from pathlib import Path

import pytest
import torch

import foveate
from tests import zoo

PACKAGE = Path(foveate.__file__).parent
DESIGN = PACKAGE.parents[1] / "docs" / "design.md"


def described():
    """The files that the numbered list of the walk names."""
    text = DESIGN.read_text(encoding="utf-8")
    (walk,) = re.findall(r"## One layer through one prefill\n(.*?)\n## ", text, flags=re.S)
    steps = re.split(r"^\d+\. ", walk, flags=re.M)[1:]
    return {name for step in steps for name in re.findall(r"`([a-z_/]+\.py)`", step)}


def taken(spec):
    """The files of backend and core whose functions run from a layer's ``update`` to what it holds,
    attributes and the policy's own stages left out.
    """
    model, inputs = zoo.build("llama"), zoo.prompt("llama", lengths=(40,))
    found, on = [], []

    def watch(frame, event, arg):
        name, path = frame.f_code.co_qualname, Path(frame.f_code.co_filename)
        if not any(path.is_relative_to(PACKAGE / part) for part in ("cache", "compression", "hf")):
            return
        if event == "call":
            if name == "FoveateLayer.update" and frame.f_locals["self"].ordinal == 1:
                on.append(True)
            if on and not attribute(name, path):
                found.append(str(path.relative_to(PACKAGE)))
        elif event == "return" and name == "attend" and path.name == "phases.py":
            on.clear()

    with foveate.compress(model, spec) as session, torch.no_grad():
        sys.setprofile(watch)
        try:
            model(**inputs, use_cache=True)
        finally:
            sys.setprofile(None)
    assert session.stats.kept_tokens < session.stats.seen
    return set(found)


def attribute(name, path):
    """Whether a function is an attribute's, or an identity stage's (``core/protocols.py``)."""
    if path.name == "protocols.py":
        return True
    module = sys.modules["foveate." + ".".join(path.relative_to(PACKAGE).with_suffix("").parts)]
    owner, _, function = name.rpartition(".")
    found = vars(getattr(module, owner, object)).get(function) if owner else None
    return isinstance(found, property) or type(found).__name__ == "cached_property"


@pytest.mark.parametrize("spec", ["snapkv:budget=50%,window=4", "knorm:budget=50%"])
def test_the_walk_through_a_prefill_is_the_one_that_is_described(spec):
    assert taken(spec) == described()
    assert len(described()) <= 14


def fields(file, name):
    """How many fields a class has, and how many are assigned anywhere but in ``__init__``."""
    tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
    (made,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name]
    first, later = set(), {n.target.id for n in made.body if isinstance(n, ast.AnnAssign)}
    for method in made.body:
        if isinstance(method, ast.FunctionDef):
            own = [n for n in ast.walk(method) if isinstance(n, ast.Attribute)]
            own = [n.attr for n in own if isinstance(n.ctx, ast.Store) and its(n.value)]
            (first if method.name == "__init__" else later).update(own)
    return len(first | later), len(later)


def its(value):
    return isinstance(value, ast.Name) and value.id == "self"


def test_what_is_remembered_of_a_prompt_is_counted_as_it_is():
    text = DESIGN.read_text(encoding="utf-8")
    row = r"^\| `([\w/]+\.py)`, `(\w+)`: .* \| (\d+) \| (\d+) \|$"
    told = re.findall(row, text, flags=re.M)
    assert len(told) == 8
    for file, name, count, change in told:
        assert fields(file, name) == (int(count), int(change)), name
    totals = tuple(sum(int(one[i]) for one in told) for i in (2, 3))
    (said,) = re.findall(r"These are (\d+) fields, of which (\d+) change", text)
    assert totals == tuple(map(int, said))
