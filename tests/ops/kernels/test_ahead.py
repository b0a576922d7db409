"""Triton's compiler takes every kernel, down to a GPU's binary: the interpreter forgives more."""

import os
import subprocess
import sys

import pytest

SHARED = 99 * 1024  # bytes that the least of the GPUs since 2020 gives a program


@pytest.mark.parametrize("capability", [pytest.param("80", marks=pytest.mark.slow), "90"])
def test_every_kernel_compiles_for_a_gpu_and_fits_into_its_shared_memory(capability):
    """Triton keeps what it compiled in the user's cache, by all that it depends on."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.ops.kernels.ahead", "bfloat16", "128", capability]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    taken = [line.split() for line in done.stdout.splitlines()]
    assert len(taken) >= 50
    assert all(int(size) <= SHARED for _, size in taken), done.stdout
