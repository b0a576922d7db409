"""The public surface changes on purpose, and the changelog says so."""

from __future__ import annotations

import pytest

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
