"""What a profile is measured on where no prompts are given."""

import pytest

from foveate.cli.calibrate.prompts import contexts
from foveate.defaults import SAMPLES
from foveate_demo.calibration import KINDS


@pytest.mark.parametrize("sees", [True, False])
def test_contexts_are_many_kinds_and_the_same_each_time(sees):
    drawn, again = (list(contexts(sees, len(KINDS))) for _ in range(2))
    assert [one.text for one in drawn] == [one.text for one in again]
    assert len({one.text for one in drawn}) == len(drawn)
    assert all(one.text.endswith("?") for one in drawn)
    counts = [len(one.images) for one in drawn]
    assert (set(counts) == {1, 3, 4, 6, 8}) if sees else not any(counts)
    assert not SAMPLES % len(KINDS)  # every kind as often as the others
