"""What a model's folder lacks for this library to use it: found without loading its weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from transformers import PreTrainedConfig

from foveate.errors import FoveateError, MissingPackage
from foveate.hf import compress
from foveate.hf.layer.support import model_name
from foveate.loading.checkpoint import check_folder, files_of
from foveate.loading.model import (
    ModelSource,
    has_vision,
    place_of,
    read_config,
    read_reader,
    without_weights,
)


class Finding(NamedTuple):
    """One part of a model: whether it is as it should be, what is to be said of it, and the command
    that mends it, if one does.
    """

    part: str
    fine: bool
    said: str
    mend: str = ""


def checkup(name: str, trust_remote_code: bool = False) -> list[Finding]:
    """The configuration, the model that it makes, its weights, and what reads its prompts.

    Args:
        name: a directory, or a model of the hub that has been downloaded.
        trust_remote_code: runs the Python code that comes with it.
    """
    findings = [_tried("configuration", lambda: _source(name, trust_remote_code)[1].model_type)]
    if not findings[0].fine:
        return findings
    source, config = _source(name, trust_remote_code)
    sees = has_vision(config)
    kind = "processor" if sees else "tokenizer"
    return [
        *findings,
        _tried("cache", lambda: _compressible(source, config)),
        _weights(Path(source.place)),
        _tried(kind, lambda: type(read_reader(source, sees)).__name__),
    ]


def _source(name: str, trusted: bool) -> tuple[ModelSource, PreTrainedConfig]:
    source = ModelSource(name, place_of(name), trusted)
    return source, read_config(source)


def _tried(part: str, what: Callable[[], str]) -> Finding:
    try:
        return Finding(part, True, what())
    except MissingPackage as error:
        return Finding(part, False, str(error), error.install)
    except FoveateError as error:
        return Finding(part, False, str(error))


def _compressible(source: ModelSource, config: PreTrainedConfig) -> str:
    """Compress a model without memory, and compare it with the folder's weights."""
    model = without_weights(source, config)
    compress(model, "full")
    said = f"{model_name(model)}: can be compressed"
    folder = Path(source.place)
    if not _weights(folder).fine or not folder.is_dir() or check_folder(source.name, model, folder):
        return said
    return f"{said}; whether it uses all weights is only seen when they are loaded"


def _weights(folder: Path) -> Finding:
    """Whether all files are there that the index lists, or one where there is none."""
    if not folder.is_dir():
        return Finding("weights", True, "of the hub: not looked for")
    names = files_of(folder)
    lacking = [name for name in names if not (folder / name).is_file()]
    if not names or lacking:
        what = (
            f"{len(lacking)} of {len(names)} files are missing: {lacking[0]}" if names else "none"
        )
        return Finding("weights", False, f"{what}. Download the model whole.")
    size = sum((folder / name).stat().st_size for name in names)
    return Finding("weights", True, f"{size / 1e9:,.1f} GB in {len(names)} file(s)")
