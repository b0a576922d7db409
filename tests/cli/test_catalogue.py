"""``methods``, ``show``, ``cite`` and ``--version``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import foveate as library
from foveate.cli.app import app, commands
from foveate.cli.catalogue import meaning

from .conftest import Foveate, refused


def test_version_is_the_librarys(foveate: Foveate) -> None:
    assert foveate("--version").stdout == f"foveate {library.__version__}\n"


def test_the_program_starts_with_a_list_of_its_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["foveate", "--help"])
    with pytest.raises(SystemExit, match="0"):
        __import__("foveate.cli").cli.main()
    words = capsys.readouterr().out.split()
    assert {"methods", "show", "cite", "run"} <= set(words)


def test_the_help_of_every_option_has_an_example_or_lists_its_values() -> None:
    group = get_command(app)
    context = group.make_context("foveate", ["doctor"], resilient_parsing=True)
    listed = {"--protocol", "--executor", "--suite", "--part", "--dims", "--against", "--device"}
    for name in commands():
        for parameter in group.get_command(context, name).params:  # type: ignore[attr-defined]
            words = getattr(parameter, "help", None) or ""
            assert words[:1].isupper() or parameter.name == "help", (name, parameter.name)
            if getattr(parameter, "is_flag", False) or parameter.name in ("spec", "action"):
                continue
            assert "e.g. " in words or parameter.opts[0] in listed, (name, parameter.name, words)


def test_methods_lists_every_method_with_its_parameters_and_paper(
    as_json: Callable[..., Any],
) -> None:
    listed = {one["name"]: one for one in as_json("methods")}
    assert sorted(listed) == sorted(library.METHODS)
    assert listed["full"]["paper"] is None
    assert listed["snapkv"]["paper"]["year"] == 2024
    assert listed["snapkv"]["paper"]["arxiv"] == "2404.14469"
    assert listed["snapkv"]["parameters"][:2] == [
        {
            "name": "budget",
            "required": True,
            "default": None,
            "takes": "an amount: 20%, 256 or 64MB",
            "does": meaning(library.METHODS["snapkv"], "budget"),
        },
        {
            "name": "window",
            "required": False,
            "default": 32,
            "takes": "an int from 1 to 2147483647 or a float from 0, below 1",
            "does": meaning(library.METHODS["snapkv"], "window"),
        },
    ]


def test_the_table_of_methods_fits_80_columns_and_breaks_no_word(
    foveate: Foveate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = foveate("methods").stdout
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    words = set(text.split())
    for name, method in library.METHODS.items():
        assert sum(line.startswith(f"{name} ") for line in text.splitlines()) == 1
        assert set(method.summary.replace("``", "").split()[2:]) <= words, name


def test_the_default_comes_first_and_methods_are_grouped(foveate: Foveate) -> None:
    lines = [line.split(" ")[0] for line in foveate("methods").stdout.splitlines()]
    listed = [name for name in lines if name in library.METHODS]
    assert listed[:6] == ["recommended", "mixkv", "prefixkv", "csp", "david", "lookm"]
    assert "kivi" in listed[-3:]
    profiles = listed.index("headkv"), listed.index("sparsemm")
    assert all(listed.index("knorm") < at < listed.index("hermes") for at in profiles)


def test_each_method_tells_in_80_columns_what_its_parameters_do(
    foveate: Foveate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in library.METHOD_NAMES:
        method, text = library.METHODS[name], foveate("methods", name).stdout
        lines = text.splitlines()
        assert max(len(line.rstrip()) for line in lines) <= 80, name
        for parameter in method.parameters:
            assert any(line.startswith(f"{parameter} ") for line in lines), (name, parameter)
            assert meaning(method, parameter), f"{name}: say what {parameter} does under Args:"
        assert method.paper is None or method.paper.title in " ".join(text.split()), name


def test_a_method_that_is_not_there_gets_a_hint(foveate: Foveate) -> None:
    assert "Did you mean 'mixkv'?" in refused(foveate("methods", "mixk"))


@pytest.mark.parametrize(
    ("begun", "offered"),
    [
        ("foveate ca", {"calibrate"}),
        ("foveate --ver", {"--version"}),
        ("foveate cite prefix", {"prefixkv"}),
        ("foveate show mixkv+prefix", {"mixkv+prefixkv"}),
        ("foveate eval --prot", {"--protocol"}),
    ],
)
def test_a_shell_completes(foveate: Foveate, begun: str, offered: set[str]) -> None:
    asked = {"_FOVEATE_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": begun}
    done = CliRunner().invoke(app, [], env=asked, prog_name="foveate")
    assert all(word in done.stdout for word in offered), (done.stdout, done.exception)
    assert done.stdout.count('":"') <= len(offered)


def test_show_writes_defaults_out(foveate: Foveate) -> None:
    text = foveate("show", "snapkv:window=16,budget=0.25,kernel=5").stdout
    assert text.splitlines()[0] == "snapkv:budget=25%,window=16"
    assert "window_attention(window=16, kernel=5, pool=avg, group=mean, pool_window=false)" in text
    assert "uniform(amount=25%)" in text
    assert "after_prefill()" in text
    assert "SnapKV: LLM Knows What You are Looking for" in text


def test_what_show_prints_in_full_is_a_spec_of_the_same_policy(as_json: Callable[..., Any]) -> None:
    shown = as_json("show", "h2o:budget=64,when=over_budget(every=4)")
    by_hand = "policy:" + ",".join(f"{slot}={text}" for slot, text in shown["stages"].items())
    assert library.policy(by_hand) == library.policy(shown["spec"])
    assert shown["scope"] == "layer"
    assert shown["paper"].startswith("H2O: Heavy-Hitter Oracle")


def test_show_says_what_is_left_to_one_budget(as_json: Callable[..., Any]) -> None:
    spec = "fastv.prune(keep=auto)+snapkv+kivi(bits=auto):budget=10%"
    shown = as_json("show", spec)
    assert shown["spec"] == spec
    assert shown["divided"] == ["keep", "bits"]
    assert shown["stages"]["store"].startswith("kivi(bits=auto,")
    assert as_json("show", "snapkv:budget=10%")["divided"] == []


def test_show_knows_policies_without_a_paper(foveate: Foveate) -> None:
    result = foveate("show", "policy:score=recency(),budget=uniform(amount=8),select=top_k()")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].split() == ["paper", "none"]


@pytest.mark.parametrize("spec", ["snapkv", "snapkv:budget=20%"])
def test_cite_prints_bibtex(foveate: Foveate, spec: str) -> None:
    text = foveate("cite", spec).stdout
    assert text.startswith("@inproceedings{li2024snapkv,\n")
    assert "eprint = {2404.14469}" in text


@pytest.mark.parametrize(
    "spec", ["full", "policy:score=recency(),budget=uniform(amount=8),select=top_k()"]
)
def test_cite_says_that_there_is_no_paper(foveate: Foveate, spec: str) -> None:
    result = foveate("cite", spec)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "comes from no paper" in result.stderr


@pytest.mark.parametrize("command", ["show", "cite"])
@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("snapk:budget=20%", "Did you mean 'snapkv'?"),
        ("snapkv:budgte=20%", "Did you mean 'budget'?"),
        ("snapkv:budget", "is not of the form key=value"),
        ("", "no method"),
    ],
)
def test_a_bad_spec_is_one_line_on_stderr(
    foveate: Foveate, command: str, spec: str, hint: str
) -> None:
    assert hint in refused(foveate(command, spec))
