"""Run as a process: one of its own reads a prompt under policies, and another one the contexts that
the first saved. Both write down what the model says next and what is held.

    python -m tests.third_party.reads FOLDER SPEC ...

They are forked before any spec is read, so that each meets what the specs name anew.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

import foveate
from foveate.hf.model.internals import CACHE
from tests import zoo

ROWS = (23, 40)


def main(*arguments: str) -> None:
    for do in ("save", "load"):
        if not os.fork():
            _write(do, *arguments)
            return
        if os.wait()[1]:
            sys.exit(f"{do} failed")


def _write(do: str, folder: str, *specs: str) -> None:
    found = [_read(do, str(Path(folder) / f"{place}"), spec) for place, spec in enumerate(specs)]
    torch.save(found, Path(folder) / do)


def _read(do: str, context: str, spec: str) -> dict[str, Any]:
    model, inputs = zoo.build("llama"), zoo.prompt("llama", lengths=ROWS)
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, 1), value=1)
    step = {"input_ids": torch.full((len(ROWS), 1), 50), "attention_mask": mask}
    with foveate.compress(model, spec) as session, torch.no_grad():
        cache = session.load(context) if do == "load" else session.prefill(**inputs)
        if do == "save":
            session.save(context, cache=cache)
        pairs = [layer.pairs for layer in cache.layers]
        return {
            "kinds": {type(one).__name__ for one in pairs},
            "columns": [one.columns for one in pairs],
            "bytes": sum(one.nbytes for one in pairs),
            "logits": model(**step, **{CACHE: cache}).logits,
        }


if __name__ == "__main__":
    main(*sys.argv[1:])
