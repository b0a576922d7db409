"""The public surface changes on purpose, and the changelog says so."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import pytest

import foveate
from foveate.errors import FoveateDeprecationWarning
from foveate.stages import budget, cross_self, merge, store
from foveate.stages.budget import head_levels
from foveate.stages.merge import following
from foveate.stages.store import kivi, narrow, quantised

from .listing import STORED, changed, listing, unreleased, unsaid


def test_the_public_surface_is_the_one_that_is_stored() -> None:
    changes = changed(STORED.read_text(encoding="utf-8").splitlines(), listing())
    assert not changes, (
        "the public surface has changed. If that is meant, say it in CHANGELOG.md under "
        "'Unreleased' (docs/stability.md tells what may change when), then run "
        "`python -m tests.surface.listing --write`:\n" + "\n".join(changes)
    )


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("foveate.snapkv(*, budget)", "foveate.snapkv(*, budget, colour=red)", "snapkv"),
        ("foveate.Session.save(path)", "foveate.Session.store(path)", "save"),
        ("$ foveate eval --limit", "$ foveate eval --at-most", "--limit"),
        ("stage top_k(recent=0)", "stage top_k(recent=1)", "top_k"),
    ],
)
def test_a_change_has_to_be_named_in_the_changelog(old: str, new: str, names: str) -> None:
    changes = changed([old], [new])
    assert changes == [f"-{old}", f"+{new}"]
    assert unsaid(changes, "nothing of the kind") == changes
    assert f"-{old}" not in unsaid(changes, f"`{names}` is another one now")


def test_the_changelog_has_a_place_for_what_is_not_released() -> None:
    assert unreleased().startswith("Unreleased\n")


def test_a_name_that_is_deprecated_works_and_says_what_to_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(foveate._RENAMED, "squeeze", ("compress", "0.9"))
    told = "import foveate\n\nassert foveate.squeeze is foveate.compress"
    with pytest.warns(FoveateDeprecationWarning, match="foveate.squeeze is deprecated") as warned:
        exec(compile(told, "user.py", "exec"), {})
    assert (warned[0].filename, warned[0].lineno) == ("user.py", 3)
    assert "goes in Foveate 0.9: write foveate.compress." in str(warned[0].message)


@pytest.mark.parametrize(
    ("before", "name", "now"),
    [
        (cross_self, "CrossSelf", "methods.csp"),
        (cross_self, "Doubles", "methods.csp"),
        (cross_self, "Lengths", "methods.csp"),
        (budget, "HeadLevels", "methods.recommended.head_levels"),
        (head_levels, "levels", "methods.recommended.head_levels"),
        (merge, "MergeFollowing", "methods.cam"),
        (following, "MergeFollowing", "methods.cam"),
        (store, "Kivi", "methods.kivi"),
        (kivi, "Kivi", "methods.kivi"),
        (store, "ZeroChannels", "methods.think"),
        (narrow, "ZeroChannels", "methods.think"),
        (store, "NarrowPairs", "core.storage"),
        (quantised, "QuantisedPairs", "core.storage"),
    ],
)
def test_what_stood_among_the_stages_is_found_there_for_a_while(
    before: ModuleType, name: str, now: str
) -> None:
    home = f"foveate.{now}"
    with pytest.warns(FoveateDeprecationWarning, match=f"in Foveate 0.3: write {home}.{name}"):
        assert getattr(before, name) is getattr(import_module(home), name)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        before.Nothing  # noqa: B018
