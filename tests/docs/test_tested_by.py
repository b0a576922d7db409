"""The map of tests/README.md finds the tests of a module, and misses none that has none."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tested_by(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "scripts"))
    import tested_by

    yield tested_by
    sys.modules.pop("tested_by")


@pytest.fixture
def checkout(tmp_path):
    """Four modules: one that a test names by way of its package, what that one uses, one that a
    helper of a test names, and a method that a test names by its spec.
    """
    files = {
        "src/foveate/__init__.py": "",
        "src/foveate/core/__init__.py": "from foveate.core.named import public",
        "src/foveate/core/named.py": "from foveate.core.used import inner\ndef public(): inner()",
        "src/foveate/core/used.py": "def inner(): ...",
        "src/foveate/core/helped.py": "",
        "src/foveate/methods/__init__.py": "",
        "src/foveate/methods/keeps.py": "def keeps(): ...",
        "tests/core/test_public.py": "from foveate.core import public",
        "tests/core/test_helped.py": "from tests.core.helper import some",
        "tests/core/helper.py": "import foveate.core.helped",
        "tests/test_spec.py": "policy('full+keeps:budget=1')",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_module_is_listed_with_what_names_it_or_with_what_it_is_tested_through(
    tested_by, checkout
):
    assert [row for row in tested_by.table(checkout).splitlines() if "`" in row] == [
        "| `core.helped` | `core/test_helped.py` |",
        "| `core.named` | `core/test_public.py` |",
        "| `core.used` | through `core.named`: `core/test_public.py` |",
        "| `methods.keeps` | `test_spec.py` |",
    ]


def test_a_module_without_a_test_needs_a_reason(tested_by, checkout, monkeypatch):
    lonely = checkout / "src" / "foveate" / "core" / "lonely.py"
    lonely.write_text("import foveate.core.named")
    with pytest.raises(ValueError, match=r"foveate\.core\.lonely: no test imports it"):
        tested_by.table(checkout)
    monkeypatch.setattr(tested_by, "ELSEWHERE", {"foveate.core.lonely": "by hand"})
    assert "| `core.lonely` | by hand |" in tested_by.table(checkout)


def test_a_reason_is_for_a_module_that_exists_and_that_no_test_reaches(
    tested_by, checkout, monkeypatch
):
    for name in tested_by.ELSEWHERE:
        path = ROOT / "src" / name.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").is_file(), name
    monkeypatch.setattr(tested_by, "ELSEWHERE", {"foveate.core.used": "by hand"})
    with pytest.raises(ValueError, match=r"foveate\.core\.used: tests reach it"):
        tested_by.table(checkout)
