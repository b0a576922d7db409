"""Generator of the site's pages outside docs/: ``python docs/scripts/site_pages.py FOLDER``.

`make docs` runs it, in the repository's root, and then mkdocs, whose hooks add every file of the
folder to the site. Takes half a minute, because the demo model runs for the pictures.
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
    """Replace the folder by methods/, live/ and repository/, the last with the notebook."""
    target = Path(folder)
    shutil.rmtree(target, ignore_errors=True)
    for name in ("methods", "live", "repository/examples"):
        (target / name).mkdir(parents=True)
    method_pages.write(target / "methods")
    write_lens(target / "live" / "lens.html")
    write_notebook(target / "repository" / f"{NOTEBOOK}.md", target / "live" / "notebook.html")


def write_lens(path: Path) -> None:
    """Save the lens on the example of the methods' pages."""
    here, loaded = example(QUESTION), demo()
    policies = compared(SPECS, BUDGETS)
    lens = lens_of(loaded.model, loaded.reader, here.inputs, [here.image], policies, loaded.name)
    lens.save(path)


def write_notebook(path: Path, frame: Path) -> None:
    """Write the page of the notebook example, and its lens to ``frame``."""
    script, lens_path = NOTEBOOK.resolve(), frame.resolve()
    with TemporaryDirectory() as elsewhere, chdir(elsewhere):  # the script writes a file
        text = notebook.page(script, lens_path, f"../../live/{frame.name}")
    path.write_text(f"{text}\nThis page is `{NOTEBOOK}`, run.\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
