"""The deliberate faults of mutations.py can be put into the source as it is today."""

from pathlib import Path

import pytest

from tests.mutations import FAULTS, Fault

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_has_its_place_and_its_tests(fault: Fault) -> None:
    text = (ROOT / "src" / "foveate" / fault.file).read_text(encoding="utf-8")
    assert text.count(fault.old) == 1
    for test in fault.tests:
        path, _, name = test.partition("::")
        found = (ROOT / path).read_text(encoding="utf-8")
        assert not name or f"def {name.partition('[')[0]}(" in found
