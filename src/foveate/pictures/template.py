"""Pages from templates. All values are escaped, and shown so that they can be read."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from foveate.errors import MissingPackage
from foveate.pictures.shown import shown


def rendered(what: str, template: str, **values: Any) -> str:
    """Fill in a template, such as "foveate.pictures/lens.html.j2".

    Raises:
        MissingPackage: jinja2 is not installed; ``what`` needs it.
    """
    try:
        from jinja2 import Environment
    except ImportError as error:
        raise MissingPackage(what, "jinja2", "report") from error
    environment = Environment(autoescape=True, finalize=_shown)
    return environment.from_string(text_of(template)).render(**values)


def text_of(path: str) -> str:
    """Return a file of a package's templates, such as "foveate.pictures/lens.css"."""
    package, _, name = path.partition("/")
    return files(package).joinpath("templates", name).read_text("utf-8")


def _shown(value: Any) -> Any:
    """Not of what is HTML already."""
    return shown(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
