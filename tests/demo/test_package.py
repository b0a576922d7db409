"""What comes with the demo model beside its code."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from foveate_demo import PROFILES

ROOT = Path(__file__).parents[2]


def test_the_shipped_profiles_are_those_of_the_benchmarks() -> None:
    shipped = list(PROFILES.iterdir())
    assert {path.name for path in shipped} == {"headkv.json", "recommended.safetensors"}
    for path in shipped:
        assert path.read_bytes() == (ROOT / "benchmarks" / "profiles" / path.name).read_bytes()


@pytest.mark.parametrize("name", ["foveate_demo", "foveate_reader"])
def test_every_file_of_a_model_is_in_one_of_its_packages(name: str) -> None:
    packed = [*_packed(ROOT, name), *_packed(ROOT / "demo_model", name)]
    assert len(packed) == len(set(packed))
    there = (ROOT / "demo_model" / name).rglob("*")
    assert set(packed) == {p for p in there if p.is_file() and p.suffix not in (".py", ".pyc")}


def _packed(distribution: Path, name: str) -> list[Path]:
    """The files of a model's package that are listed as a distribution's data."""
    told = tomllib.loads((distribution / "pyproject.toml").read_text(encoding="utf-8"))
    return [
        path
        for package, patterns in told["tool"]["setuptools"]["package-data"].items()
        if package.startswith(name)
        for pattern in patterns
        for path in ROOT.joinpath("demo_model", *package.split(".")).glob(pattern)
    ]
