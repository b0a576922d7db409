# ruff: noqa: SIM905 - words are easier to read and to change without quotes around each
"""Links, buttons and headings to be found on pages of Python's own documentation.

Every Python serves them (``python -m pydoc``, local only). They vary with the version of Python,
fonts and Chromium; on one machine the same seed gives the same pages.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from foveate.errors import InvalidInput
from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.screenspot import inside
from foveate_lab.eval.browser import window
from foveate_lab.eval.task_registry import task
from foveate_lab.eval.tasks.screen import SIZE, Shot, Target, chosen, screen_samples, targets

MODULES = """
argparse ast base64 bisect calendar cmd codecs collections colorsys configparser contextlib copy
csv dataclasses datetime difflib email enum fnmatch fractions functools glob gzip heapq html
inspect io ipaddress json keyword linecache locale logging mimetypes numbers operator pathlib
pickle pprint queue random re sched selectors shelve shlex shutil statistics string struct
tempfile textwrap threading timeit token tokenize traceback types unittest uuid warnings weakref
zipfile
""".split()
PAGES = (*(f"{name}.html" for name in MODULES), "topics.html", "keywords.html")
KINDS = {
    "link": "a[href]:not([href^='file:'])",  # a file's path says where Python is installed
    "button": "input[type=submit]",
    "heading": "strong.title, strong.bigsection",
}
INSTRUCTIONS = {"link": "follow the link {}", "button": "press {}", "heading": "read {}"}
LONGEST = 40  # characters of a target's text


@task("gui_text", metric=inside, longest=32, divisible=False)
def gui_text(count: int, seed: int) -> Iterator[Sample]:
    """Find a link, button or heading on a page of Python's documentation (needs Chromium)."""
    with window("gui_text", SIZE) as page, documentation() as address:
        shots = [
            _shot(page, address, Random(f"gui_text/{seed}/{number}")) for number in range(count)
        ]
    yield from screen_samples(shots)  # after Chromium has ended


def _shot(page: Any, address: str, r: Random) -> Shot:
    name = r.choice(PAGES)
    page.goto(f"{address}{name}")
    scrolled, fitting = 0, list[Target]()
    while not fitting:  # the screen may show only a docstring, with nothing to click
        scrolled = page.evaluate(
            "(share) => { const e = document.scrollingElement;"
            " scrollTo(0, Math.floor(share * (e.scrollHeight - innerHeight)));"
            " return Math.floor(scrollY); }",
            r.choice((0, r.random())),
        )
        fitting = [target for target in targets(page, KINDS) if len(target.text) <= LONGEST]
    target = chosen(r, fitting)
    instruction = INSTRUCTIONS[target.kind].format(target.text)
    return Shot(page.screenshot(), instruction, target, {"page": name, "scrolled": scrolled})


@contextmanager
def documentation() -> Iterator[str]:
    """Serve Python's documentation with pydoc during the block, and yield its address.

    Raises:
        InvalidInput: pydoc does not start.
    """
    command = [sys.executable, "-u", "-m", "pydoc", "-p", "0"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=os.path.dirname(os.__file__),  # pydoc searches its working directory for modules
        env={**os.environ, "PYTHONHASHSEED": "0"},  # fixes the order of sets on a page
    ) as server:
        try:
            output = ""
            for line in server.stdout or ():
                output += line
                if line.startswith("Server ready at "):
                    break
            else:
                raise InvalidInput(
                    f"{' '.join(command)} serves no pages: {output.strip() or 'it ended'}."
                )
            yield line.split()[-1]
        finally:
            server.terminate()
