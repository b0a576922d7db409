"""Check of a model's folder for everything that Foveate needs, without loading its weights."""

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
    locate,
    read_config,
    read_reader,
    without_weights,
)


class Finding(NamedTuple):
    """Result for one part of a model: ``fine`` or not, a sentence about it (``said``), and the
    command that mends it, if there is one.
    """

    part: str
    fine: bool
    said: str
    mend: str = ""


def checkup(name: str, trust_remote_code: bool = False) -> list[Finding]:
    """Check the configuration, the model built from it, its weights, and its processor.

    Args:
        name: a directory, or a downloaded model of the hub.
        trust_remote_code: run the Python code that comes with the model.
    """
    findings = [_run_check("configuration", lambda: _source(name, trust_remote_code)[1].model_type)]
    if not findings[0].fine:
        return findings
    source, config = _source(name, trust_remote_code)
    sees = has_vision(config)
    kind = "processor" if sees else "tokenizer"
    return [
        *findings,
        _run_check("cache", lambda: _compressible(source, config)),
        _weights(Path(source.location)),
        _run_check(kind, lambda: type(read_reader(source, sees)).__name__),
    ]


def _source(name: str, trusted: bool) -> tuple[ModelSource, PreTrainedConfig]:
    source = ModelSource(name, locate(name), trusted)
    return source, read_config(source)


def _run_check(part: str, what: Callable[[], str]) -> Finding:
    try:
        return Finding(part, True, what())
    except MissingPackage as error:
        return Finding(part, False, str(error), error.install)
    except FoveateError as error:
        return Finding(part, False, str(error))


def _compressible(source: ModelSource, config: PreTrainedConfig) -> str:
    """Compress a model on the "meta" device, and compare it with the folder's weights."""
    model = without_weights(source, config)
    compress(model, "full")
    text = f"{model_name(model)}: can be compressed"
    folder = Path(source.location)
    if not _weights(folder).fine or not folder.is_dir() or check_folder(source.name, model, folder):
        return text
    return f"{text}; its use of all weights is checked when they are loaded"


def _weights(folder: Path) -> Finding:
    """Look for all files that the index lists, or for any weights file if there is no index."""
    if not folder.is_dir():
        return Finding("weights", True, "on the hub: not checked")
    names = files_of(folder)
    lacking = [name for name in names if not (folder / name).is_file()]
    if not names or lacking:
        what = (
            f"{len(lacking)} of {len(names)} files are missing: {lacking[0]}" if names else "none"
        )
        return Finding("weights", False, f"{what}. Download the complete model.")
    size = sum((folder / name).stat().st_size for name in names)
    return Finding("weights", True, f"{size / 1e9:,.1f} GB in {len(names)} file(s)")
