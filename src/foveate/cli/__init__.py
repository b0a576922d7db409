"""Command line of Foveate: the program ``foveate``."""

import sys

NEEDED = {
    name: name
    for name in ("jaxtyping", "numpy", "rich", "safetensors", "torch", "transformers", "typer")
} | {"PIL": "pillow"}
"""Foveate's dependencies: module name to package name on PyPI."""


def main() -> None:
    """Run the command in ``sys.argv``.

    In a checkout that is not installed, a dependency may be missing: print one line that names it
    and exit with 2.
    """
    try:
        from foveate.cli.app import app  # not at import: only the program needs typer and rich

        app(prog_name="foveate")
    except ModuleNotFoundError as error:
        if error.name not in NEEDED:
            raise
        package = NEEDED[error.name]
        print(
            f"Error: Foveate needs the package {package!r}: pip install {package}.", file=sys.stderr
        )
        sys.exit(2)
