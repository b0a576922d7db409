"""Nothing in the library has the type or device that a process happens to have as its default."""

from __future__ import annotations

import pytest

from .factories import ALLOWED, CHECKED, ROOT, faults, found, main

WITHOUT = {
    "torch.zeros(3)": "torch.zeros without device= and dtype=",
    "torch.zeros(3, device=x.device)": "torch.zeros without dtype=",
    "torch.tensor([1], dtype=torch.long)": "torch.tensor without device=",
    "torch.as_tensor(x)": "torch.as_tensor without device= and dtype=",
    "torch.rand(3, generator=one)": "torch.rand without device= and dtype=",
    "torch.arange(3)": "torch.arange without device=",
    "torch.arange(0, n, 0.5, device=x.device)": "torch.arange without dtype=",
    "torch.arange(n / 2, device=x.device)": "torch.arange without dtype=",
    "torch.hann_window(3, device=x.device)": "torch.hann_window without dtype=",
    "torch.where(x, 1.0, -1)": "torch.where of two numbers",
    "torch.where(x, 0, -0.5)": "torch.where of two numbers",
    "torch.FloatTensor([1.0])": "torch.FloatTensor",
    "torch.set_default_dtype(torch.float64)": "torch.set_default_dtype",
    "torch.get_default_dtype()": "torch.get_default_dtype",
    "from torch import Tensor, zeros": "call it as torch.zeros",
}
WITH = (
    "torch.zeros(3, dtype=torch.long, device=x.device)",
    "torch.zeros(3, **like(x))",
    "torch.arange(n // 2, device=x.device)",
    "torch.arange(0.5, n, dtype=x.dtype, device=x.device)",
    "torch.where(x, 0, -1)",
    "torch.where(x, y, 0.5)",
    "torch.zeros_like(x)",
    "x.new_zeros(3)",
    "torch.from_numpy(x)",
    "other.zeros(3)",
    "isinstance(x, torch.Tensor)",
    "from torch import Tensor",
)


@pytest.mark.parametrize(("code", "says"), WITHOUT.items())
def test_a_call_that_goes_by_the_defaults_is_found_in_its_line(code: str, says: str) -> None:
    ((line, fault),) = faults(f"x = 1\n\n{code}\n")
    assert line == 3
    assert fault.startswith(says)


@pytest.mark.parametrize("code", WITH)
def test_a_call_that_says_what_it_makes_is_none(code: str) -> None:
    assert not list(faults(code))


def test_the_library_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0, capsys.readouterr().out


def test_each_is_told_with_its_file_and_line(tmp_path) -> None:
    for folder in CHECKED:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "one.py").write_text("import torch\ntorch.ones(2)\n")
    assert [line.split(" ")[0] for line in found(tmp_path)] == [
        "demo_model/foveate_demo/one.py:2:",
        "demo_model/foveate_reader/one.py:2:",
        "src/one.py:2:",
    ]


def test_what_is_left_out_is_there_and_needs_it() -> None:
    for name, reason in ALLOWED.items():
        assert reason
        assert list(faults((ROOT / name).read_text(encoding="utf-8"))), name
