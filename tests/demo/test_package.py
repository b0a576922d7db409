"""What comes with the demo model beside its code."""

from __future__ import annotations

import tomllib
from pathlib import Path

from foveate_demo import PROFILES

ROOT = Path(__file__).parents[2]


def test_the_shipped_profile_is_that_of_the_benchmarks() -> None:
    benchmarks = ROOT / "benchmarks" / "profiles"
    assert (PROFILES / "headkv.json").read_bytes() == (benchmarks / "headkv.json").read_bytes()


def test_every_file_of_the_demo_is_in_the_package() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    data = told["tool"]["setuptools"]["package-data"]
    for package in ("foveate_demo", "foveate_demo.scenes"):
        folder = ROOT.joinpath("demo_model", *package.split("."))
        packed = {path for pattern in data[package] for path in folder.glob(pattern)}
        there = {
            path
            for path in folder.rglob("*")
            if path.is_file()
            and path.suffix != ".py"
            and path.suffix != ".pyc"
            and (package.endswith("scenes") or "scenes" not in path.parts)
        }
        assert packed == there
