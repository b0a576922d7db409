"""What is not imported before it is needed: PyTorch by the command line, transformers by anyone."""

from __future__ import annotations

import subprocess
import sys

import pytest

import foveate
from foveate.cli.app import Deferred, commands


def imported(program: str, *arguments: str) -> set[str]:
    """Which of the large packages a program imports, in a process of its own."""
    heavy = {"torch", "transformers", "numpy", "PIL"}
    told = f"{program}\nimport sys\nprint(*sorted({heavy} & set(sys.modules)), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", told, *arguments], capture_output=True, text=True, check=True
    )
    return set(done.stderr.splitlines()[-1].split())


def test_the_package_imports_nothing_but_what_is_asked_for() -> None:
    assert not imported("import foveate; foveate.FoveateError, foveate.__version__, dir(foveate)")


def test_a_policy_needs_torch_and_no_transformers() -> None:
    told = "import foveate; foveate.policy('policy:score=recency(),budget=uniform(amount=9)," + (
        "select=top_k()'); foveate.policy('mixkv:budget=20%'); foveate.Kept"
    )
    assert imported(told) & {"torch", "transformers"} == {"torch"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--version",),
        ("--help",),
        ("nothing",),
        *((name, "--help") for name in commands()),
        ("run", "--nothing"),
        ("run", "--method", "nothing:budget=20%"),
        ("show", "snapkv+nothing"),
        ("serve", "MODEL", "--policy", "nothing"),
        ("calibrate", "nothing"),
    ],
    ids=" ".join,
)
def test_the_command_line_by_itself_needs_neither(arguments: tuple[str, ...]) -> None:
    told = "import sys\nfrom foveate.cli import main\ntry: main()\nexcept SystemExit: print(end='')"
    assert not imported(told, *arguments)


def test_python_m_foveate_is_the_command() -> None:
    command = [sys.executable, "-m", "foveate", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"foveate {foveate.__version__}\n"


def test_every_public_name_is_found_where_it_is_said_to_be() -> None:
    assert len(foveate.__all__) == len(set(foveate.__all__))
    assert set(foveate.METHOD_NAMES) < set(foveate.__all__) <= set(dir(foveate))
    for name in foveate.METHOD_NAMES:
        assert getattr(foveate, name) is foveate.METHODS[name]
    for name in foveate.__all__:
        assert getattr(foveate, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'polcy'"):
        foveate.polcy  # noqa: B018


def test_a_method_of_another_package_stands_behind_all_of_foveates_own() -> None:
    told = (
        "from foveate.policies.method import METHODS, method\n"
        "from foveate.policies.policy import Policy\n"
        "def theirs(*, budget: object) -> Policy: ...\n"
        "method()(theirs)\n"
        "assert list(METHODS)[0] == 'mixkv' and list(METHODS)[-1] == 'theirs', list(METHODS)\n"
    )
    assert "torch" in imported(told)


@pytest.mark.parametrize("name", commands())
def test_the_list_of_commands_says_what_each_says_of_itself(name: str) -> None:
    assert Deferred()[name].help.startswith(commands()[name].summary)
