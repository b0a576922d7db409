"""The check of docstring openings and empty names finds them, and nothing else."""

import pytest

from tests.surface.english import faults


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('"""What is kept."""', ["'What'"]),
        ('class A:\n    """Of a head."""', ["'Of'"]),
        (
            'def f():\n    """Return the size."""\n    for one in x:\n        held = one',
            ["'one'", "'held'"],
        ),
        ("def f(_given): ...", ["'_given'"]),
        ('class Chat:\n    """A chat."""\n    def say(self): ...', []),
        ('"""Whatever happens, nothing is lost."""\nstone = 1', []),
    ],
)
def test_faults_are_named(text, found):
    faulty = [fault for _, fault in faults(text)]
    assert len(faulty) == len(found)
    assert all(name in fault for name, fault in zip(found, faulty, strict=True))


def test_keys_of_a_file_are_allowed():
    assert not list(faults("asked = 1", {"asked"}))
    assert list(faults("told = 1", {"asked"}))
