"""The API reference has the whole public surface; `make docs` checks its links and docstrings."""

import re
import sys
from pathlib import Path

import foveate

DOCS = Path(__file__).parents[2] / "docs"
API = DOCS / "api"
sys.path.insert(0, str(DOCS / "scripts"))
try:
    import check_links
    import site_tables
finally:
    sys.path.pop(0)


def test_every_public_name_stands_in_the_api_reference():
    text = "\n".join(page.read_text(encoding="utf-8") for page in sorted(API.glob("*.md")))
    shown = set(re.findall(r"^::: foveate\.(\w+)", text, flags=re.MULTILINE))
    elsewhere = {
        *foveate.METHODS,  # each has a page of its own
        "METHODS",  # a mapping: its class is shown
        "FoveateError",  # with all other errors
        "methods",  # the module that holds them
        "stages",  # package by package
    }
    assert shown >= set(foveate.__all__) - elsewhere
    assert "::: foveate.policies.method.Methods" in text
    packages = set(re.findall(r"^::: foveate\.stages\.(\w+)$", text, flags=re.MULTILINE))
    assert packages == {"budget", "merge", "score", "select", "when"}


def test_a_link_to_nowhere_is_found_in_a_built_site(tmp_path):
    (tmp_path / "part").mkdir()
    (tmp_path / "index.html").write_text(
        '<h1 id="top">A</h1><a href="part/a.html#there">1</a><a href="#top">2</a>'
        '<a href="part/a.html#gone">3</a><img src="gone.png"><a href="https://example.org">4</a>'
    )
    (tmp_path / "part" / "a.html").write_text(
        '<p id="there"><a href="../index.html">1</a><a href="/part/b.html">2</a>'
    )
    assert list(check_links.broken(tmp_path)) == [
        "index.html: part/a.html#gone: no such place in that page",
        "index.html: gone.png: no such file",
        "part/a.html: /part/b.html: no such file",
    ]


def test_all_that_is_public_for_packages_of_ones_own_stands_in_the_api_reference():
    public = (DOCS / "stability.md").read_text(encoding="utf-8").partition("## Not public")[0]
    modules = set(re.findall(r"`(foveate(?:\.[a-z][a-z_]*)+)`", public)) - {"foveate.stages"}
    assert len(modules) > 8
    shown = "\n".join(page.read_text(encoding="utf-8") for page in API.glob("*.md"))
    also = {
        "foveate.policies.method": "foveate.method",
        "foveate.policies.spec": "foveate.policies.spec.stage",
    }
    for name in modules:
        assert re.search(rf"^::: {also.get(name, name)}\b", shown, re.MULTILINE), name


def test_the_landing_page_shows_what_it_is():
    page = (DOCS / "index.md").read_text(encoding="utf-8")
    for shown in ("](kept.png)", "<!-- landing -->\nOn ", "pip install", "<!-- live:", "git clone"):
        assert shown in page


def test_cells_of_a_wide_table_know_their_column():
    head = "".join(
        f"<th>{name}</th>" for name in ("", "method", "<b>mean</b>", "40%", "20%", "10%")
    )
    table = f"<table><tr>{head}</tr><tr>{'<td>1</td>' * 6}</tr></table>"
    found = site_tables.on_page_content(table)
    assert found.startswith("<table data-wide>")
    assert re.findall(r'data-label="(.*?)"', found) == ["", "method", "mean", "40%", "20%", "10%"]
    narrow = "<table><tr><th>a</th></tr><tr><td>1</td></tr></table>"
    assert site_tables.on_page_content(narrow) == narrow
