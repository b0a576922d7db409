"""A method is defined once, here or in another package, and cited."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import foveate
from foveate.errors import InvalidParameter, UnknownMethod
from foveate.policies import method
from foveate.policies.method import find_paper, references
from foveate.policies.prunes import PRUNES
from foveate.stages.budget import Uniform
from foveate.stages.score import Recency
from foveate.stages.select import TopK

FIVE = ("mixkv", "prefixkv", "csp", "david", "lookm")
"""They come first in every listing."""


@pytest.fixture
def registry(monkeypatch):
    """The registry, and afterwards only what was in it before."""
    len(foveate.METHODS)
    monkeypatch.setattr(foveate.METHODS, "_entries", dict(foveate.METHODS._entries))
    return foveate.METHODS


def define(name, module):
    def build(*, budget, recent: int = 2):
        """Keeps the last.

        And that is all.
        """
        return foveate.Policy(
            score=Recency(), budget=Uniform(amount=budget), select=TopK(recent=recent)
        )

    build.__name__ = build.__qualname__ = name
    build.__module__ = module
    return foveate.method(foveate.Paper(title="T", authors=("A",), year=2020, venue="V", key="k"))(
        build
    )


def test_a_method_is_listed_and_made_from_a_spec_once_it_is_defined(registry):
    made = define("latest", "somewhere")
    assert registry["latest"] is made
    assert "latest" in registry
    assert list(registry)[-1] == "latest"
    assert tuple(registry)[: len(FIVE)] == FIVE
    assert len(registry) == len(list(registry))
    policy = foveate.policy("latest:budget=10,recent=3")
    assert (policy.select, policy.name) == (TopK(recent=3), "latest")
    assert policy.spec == "latest:budget=10,recent=3"
    assert (made.summary, list(made.parameters)) == ("Keeps the last.", ["budget", "recent"])
    assert made.paper.key == "k"


def test_a_method_of_a_taken_name_is_refused(registry):
    before = registry["snapkv"]
    with pytest.raises(InvalidParameter) as refused:
        define("snapkv", "somewhere.else")
    assert "'snapkv' exists already, in foveate.methods.snapkv" in str(refused.value)
    assert "somewhere.else" in str(refused.value)
    assert registry["snapkv"] is before


def test_a_module_that_is_run_again_may_define_its_method_again(registry):
    define("latest", "somewhere")
    again = define("latest", "somewhere")
    assert registry["latest"] is again


def test_a_method_with_a_positional_parameter_is_refused(registry):
    with pytest.raises(InvalidParameter, match="make 'budget' keyword-only"):

        @foveate.method()
        def loose(budget):
            return foveate.full()

    assert "loose" not in registry


def test_an_unknown_or_missing_parameter_is_named():
    with pytest.raises(InvalidParameter, match=r"no parameter 'kernl'. Did you mean 'kernel'\?"):
        foveate.snapkv(budget=0.2, kernl=3)
    with pytest.raises(InvalidParameter, match="snapkv needs a budget"):
        foveate.snapkv(window=3)
    with pytest.raises(UnknownMethod, match=r"Did you mean 'streaming_llm'\?"):
        foveate.METHODS["streamingllm"]


THEIRS = '''
import foveate
from foveate.stages.budget import Uniform
from foveate.stages.score import Recency
from foveate.stages.select import TopK

@foveate.method()
def its_name(*, budget):
    """Keeps the last tokens."""
    return foveate.Policy(score=Recency(), budget=Uniform(amount=budget), select=TopK(recent=5))
'''
READER = """
import foveate
assert "their_module" not in __import__("sys").modules
print(foveate.policy("its_name:budget=10").spec)
print(*foveate.METHODS)
print(foveate.METHODS["its_name"].summary)
"""


def test_a_method_of_another_package_is_found_through_its_entry_point(tmp_path):
    (tmp_path / "their_module.py").write_text(THEIRS)
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[foveate.methods]\nits_name = their_module:its_name\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", READER], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    spec, names, summary = done.stdout.splitlines()
    assert spec == "its_name:budget=10"
    assert names.split() == [*foveate.METHODS, "its_name"]
    assert summary == "Keeps the last tokens."


PAPERS = {name: m.paper for name, m in foveate.METHODS.items() if m.paper is not None}


def fields_of(bibtex):
    """Key and fields of one entry, read brace by brace."""
    head = re.match(r"@(?:inproceedings|article)\{([A-Za-z0-9:_-]+),\n", bibtex)
    assert head is not None, bibtex
    assert bibtex.endswith("\n}")
    fields, rest = {}, bibtex[head.end() : -2]
    while rest:
        name = re.match(r"\s*([a-z]+) = \{", rest)
        assert name is not None, rest
        depth, end = 1, name.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(rest[end], 0)
            end += 1
        assert name[1] not in fields
        fields[name[1]] = rest[name.end() : end - 1]
        rest = rest[end:]
        assert rest == "" or rest.startswith(",\n")
        rest = rest[1:]
    return head[1], fields


@pytest.mark.parametrize("name", PAPERS)
def test_the_citation_of_a_method_is_a_complete_bibtex_entry(name):
    paper = PAPERS[name]
    key, fields = fields_of(paper.bibtex)
    assert key == paper.key
    assert fields["title"] == paper.title
    assert tuple(fields["author"].split(" and ")) == paper.authors
    assert all(re.fullmatch(r"[^,]+, [^,]+", author) for author in paper.authors)
    assert re.fullmatch(r"20\d\d", fields["year"])
    published = "journal" if paper.bibtex.startswith("@article") else "booktitle"
    assert fields[published] == paper.venue
    assert paper.venue.startswith(("arXiv", "Transactions")) == (published == "journal")
    assert fields.get("code") == paper.code
    if name in ("cam", "david"):  # not on arXiv
        assert paper.arxiv is None
    else:
        assert re.fullmatch(r"\d{4}\.\d{5}", fields["eprint"])
        assert fields["archiveprefix"] == "arXiv"
    assert paper.bibtex.isascii()  # accents are written as LaTeX, which every BibTeX reads


def test_every_paper_is_an_entry_of_the_references_and_every_entry_is_cited():
    listed = references()
    text = Path(method.__file__).parents[1].joinpath("methods", "references.bib").read_text()
    assert "\n\n".join(paper.bibtex for paper in listed.values()) + "\n" == text
    assert list(listed) == sorted(listed)
    cited = {*PAPERS.values(), *(each.paper for each in PRUNES.values() if each.paper)}
    assert cited == set(listed.values())
    for paper in listed.values():
        key, fields = fields_of(paper.bibtex)
        assert (key, fields["title"]) == (paper.key, paper.title)


def test_a_key_that_the_references_lack_is_refused_by_name():
    assert find_paper("li2024snapkv") is foveate.snapkv.paper
    with pytest.raises(InvalidParameter, match=r"'li2024snapk'.*Did you mean 'li2024snapkv'\?"):
        find_paper("li2024snapk")


def test_a_paper_of_ones_own_is_cited_by_its_fields():
    paper = foveate.Paper(title="T", authors=("A, B",), year=2020, venue="V", key="k")
    assert fields_of(paper.bibtex) == (
        "k",
        {"title": "T", "author": "A, B", "year": "2020", "booktitle": "V"},
    )


def test_every_paper_is_cited_under_a_key_of_its_own():
    assert set(foveate.METHODS) - set(PAPERS) == {"full", "random", "recommended"}
    of_one_paper = (
        {"vnorm", "infinipotv"},
        {"compactor", "leverage", "non_causal_attention"},
    )
    papers = set(PAPERS.values())
    assert len(papers) == len(PAPERS) - sum(len(names) - 1 for names in of_one_paper)
    assert len(papers) == len({paper.key for paper in papers})
    assert all(len({PAPERS[name] for name in names}) == 1 for names in of_one_paper)
