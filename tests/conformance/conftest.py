"""All of this with the kernels: FOVEATE_KERNELS=triton python -m pytest tests/conformance."""

import os

import pytest

import foveate


@pytest.fixture(autouse=True)
def _implementation():
    with foveate.ops.using(os.environ.get("FOVEATE_KERNELS", "reference")):
        yield
