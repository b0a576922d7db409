"""Processors that compute with torchvision, which is here and not beside the other tests: they put
patches where their counterparts with Pillow do.
"""

from dataclasses import replace
from importlib import import_module

import pytest

from tests.models.published import EYES
from tests.models.squares import check


@pytest.mark.parametrize("name", EYES)
def test_tokens_see_what_lies_under_them(name):
    eye = EYES[name]
    pillow = type(eye.processor)
    kind = getattr(
        import_module(pillow.__module__.replace("_pil_", "_")), pillow.__name__.removesuffix("Pil")
    )
    given = eye.processor.to_dict()
    settings = {k: given[k] for k in given if not k.endswith(("_type", "_class"))}
    eye = replace(eye, processor=kind(**{k: v for k, v in settings.items() if v is not None}))
    for shape in ("wide", "tall", "small"):
        check(name, eye, shape, (0.3, 0.4))
