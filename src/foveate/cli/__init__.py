"""The command line: ``foveate methods``, ``show``, ``cite`` and ``run``."""


def main() -> None:
    """Runs the command that ``sys.argv`` names."""
    from foveate.cli.app import app  # not at import: only the program needs typer and rich

    app(prog_name="foveate")
