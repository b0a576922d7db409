"""The pages of the five papers say where each equation stands, and the source says it too."""

import importlib
import inspect
import sys
from functools import reduce
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
SOURCE = Path(__file__).parents[2] / "src"
LAST = {"mixkv": 5, "prefixkv": 4, "csp": 18, "david": 7, "lookm": 12}  # numbers in the papers
WITHOUT_ALGORITHM = ("lookm",)
TEXT = '''
def first():
    """LOOK-M eqs. 2 to 4 and 6; DAVID Algorithm 1."""
    # CSP (arXiv:2412.04652), eq. 5:
    # of queries
    return 1


class Second:
    def method(self):
        return 2  # Eq. 7
'''


@pytest.fixture
def equations(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "scripts"))
    import equations

    yield equations
    for name in ("equations", "equation_lines"):
        sys.modules.pop(name)


def test_every_numbered_equation_has_a_row_with_a_place_or_a_reason(equations):
    for name, last in LAST.items():
        rows = equations.EQUATIONS[name]
        numbers = [row.number for row in rows]
        assert [n for n in numbers if n.isdigit()] == [str(n) for n in range(1, last + 1)]
        named = [] if name in WITHOUT_ALGORITHM else ["Algorithm 1"]
        assert [n for n in numbers if not n.isdigit()] == named
        assert all(bool(row.locations) != bool(row.why) for row in rows)


@pytest.mark.parametrize("name", LAST)
def test_what_a_row_points_to_exists_and_names_the_equation(equations, name):
    from equation_lines import named

    for row in equations.EQUATIONS[name]:
        for location in row.locations:
            location_file, symbol = equations.file_and_symbol(name, location)
            file = equations.in_src(location_file)
            module = importlib.import_module(".".join(Path(file).with_suffix("").parts))
            found = inspect.unwrap(reduce(getattr, symbol.split("."), module))
            lines, first = inspect.getsourcelines(found)
            assert row.number in named("".join(lines)), f"{file}: {symbol} of {row.number}"
            line = equations.line(name, row.number, location_file, symbol)
            assert first <= line < first + len(lines)
            assert not (SOURCE / file).read_text().splitlines()[line - 1].lstrip().startswith("#")


@pytest.mark.parametrize(
    ("symbol", "number", "title", "line"),
    [
        ("first", "3", "LOOK-M", 2),
        ("first", "6", "", 2),
        ("first", "Algorithm 1", "DAVID", 2),
        ("first", "5", "CSP", 6),  # the code below the comment
        ("Second", "7", "", 11),
        ("Second.method", "7", "", 11),
    ],
)
def test_the_line_is_that_of_the_comment_or_of_the_symbol(equations, symbol, number, title, line):
    from equation_lines import located

    assert located(TEXT, symbol, number, title) == line


@pytest.mark.parametrize(
    ("symbol", "number", "title", "said"),
    [
        ("first", "7", "", r"first does not name eq\. 7"),  # that is elsewhere
        ("first", "5", "LOOK-M", r"first does not name LOOK-M eq\. 5"),  # it is CSP's
        ("Second", "Algorithm 1", "", "Second does not name Algorithm 1"),
        ("Second.other", "7", "", r"no Second\.other"),
    ],
)
def test_what_is_gone_or_unnamed_is_told(equations, symbol, number, title, said):
    from equation_lines import located

    with pytest.raises(ValueError, match=said):
        located(TEXT, symbol, number, title)
