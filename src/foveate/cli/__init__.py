"""The command line: ``foveate methods``, ``show``, ``cite`` and ``run``."""

import sys

NEEDED = {
    name: name
    for name in ("jaxtyping", "numpy", "rich", "safetensors", "torch", "transformers", "typer")
} | {"PIL": "pillow"}
"""Modules that come with Foveate where it is installed, and the packages that have them."""


def main() -> None:
    """Runs the command that ``sys.argv`` names. Of a checkout that is not installed a package may
    be missing, which is said in a line.
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
