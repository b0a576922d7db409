"""Pages from templates. All values are escaped."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from foveate.core.errors import MissingPackage


def rendered(what: str, template: str, **values: Any) -> str:
    """The template of that name, filled in.

    Raises:
        MissingPackage: jinja2 is not installed; ``what`` needs it.
    """
    try:
        from jinja2 import Environment
    except ImportError as error:
        raise MissingPackage(what, "jinja2", "report") from error
    return Environment(autoescape=True).from_string(text_of(template)).render(**values)


def text_of(name: str) -> str:
    """A file beside the templates, as it is."""
    return files("foveate.report").joinpath("templates", name).read_text("utf-8")
