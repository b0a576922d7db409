"""Writes what the site has beside docs/: ``python docs/scripts/site_pages.py FOLDER``.

`make docs` runs it, in the repository's root, and then mkdocs, whose hooks add every file of the
folder to the site. The demo model reads a prompt for the pictures: half a minute.
"""

from __future__ import annotations

import shutil
import sys
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

import method_pages
import notebook
from kept import QUESTION, demo, example

from foveate.pictures.lens import compared, lens_of

SPECS = ("snapkv:window=0.25", "mixkv:window=0.25", "lookm")
BUDGETS = ("10%", "20%", "33%", "50%")
NOTEBOOK = Path("examples", "lens_notebook.py")


def main(folder: str) -> None:
    """Replaces the folder: methods/, live/, and repository/, the notebook."""
    target = Path(folder)
    shutil.rmtree(target, ignore_errors=True)
    for name in ("methods", "live", "repository/examples"):
        (target / name).mkdir(parents=True)
    method_pages.write(target / "methods")
    write_lens(target / "live" / "lens.html")
    write_notebook(target / "repository" / f"{NOTEBOOK}.md", target / "live" / "notebook.html")


def write_lens(path: Path) -> None:
    """The lens on the example that the methods' pages show."""
    here, loaded = example(QUESTION), demo()
    policies = compared(SPECS, BUDGETS)
    made = lens_of(loaded.model, loaded.reader, here.inputs, [here.image], policies, loaded.name)
    made.save(path)


def write_notebook(path: Path, frame: Path) -> None:
    """The example's cells, with what each of them prints and shows."""
    script, shown = NOTEBOOK.resolve(), frame.resolve()
    with TemporaryDirectory() as elsewhere, chdir(elsewhere):  # it writes a file
        text = notebook.page(script, shown, f"../../live/{frame.name}")
    path.write_text(f"{text}\nThis page is `{NOTEBOOK}`, run.\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
