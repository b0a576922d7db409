"""Packages that transformers needs, and that are not installed or cannot be imported."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from foveate.errors import FoveateError, MissingPackage
from foveate.packages import broken_package, pip_line

MODULES = {
    "torchvision": "torchvision",
    "sentencepiece": "sentencepiece",
    "tiktoken": "tiktoken",
    "protobuf": "google.protobuf",
    "av": "av",
    "decord": "decord",
    "num2words": "num2words",
    "librosa": "librosa",
    "soundfile": "soundfile",
    "torchaudio": "torchaudio",
    "timm": "timm",
    "einops": "einops",
    "accelerate": "accelerate",
}
"""Packages that processors and tokenizers need, with the module that each installs."""
VOCABULARIES = ("*.model", "*.tiktoken", "*.vocab", "spiece.*")
OF_VOCABULARIES = ("sentencepiece", "tiktoken", "protobuf")


def importable(module: str) -> bool:
    """Return True if a module can be found; it is not imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent is missing as well
        return False


def named_in(message: str) -> list[str]:
    """Return the packages that a message of transformers names, and that are not installed."""
    words = set(re.findall(r"[a-z0-9_]+", message.lower()))
    if "video_processor_mapping" in words:  # all video processors need torchvision
        words.add("torchvision")
    return [name for name, module in MODULES.items() if name in words and not importable(module)]


def has_vocabulary(location: str) -> bool:
    """Return True if a directory has a vocabulary that needs a package; also for a hub id, whose
    files are unknown. Without any vocabulary, transformers' error names the same packages.
    """
    folder = Path(location)
    return not folder.is_dir() or any(next(folder.glob(pattern), None) for pattern in VOCABULARIES)


def missing_package(what: str, error: Exception, location: str) -> FoveateError | None:
    """Return an error that names the packages which ``location`` (directory or hub id) needs, with
    the command to install them; None if transformers' ``error`` is not about packages.
    """
    if broken := broken_package(error):
        return broken
    lacking = named_in(str(error))
    if not has_vocabulary(location):
        lacking = [name for name in lacking if name not in OF_VOCABULARIES]
    if not lacking:
        return None
    word = " and "
    if "tiktoken" in lacking and not importable("sentencepiece"):
        # transformers tries sentencepiece first and tiktoken last, and names only the last
        lacking, word = ["sentencepiece", "tiktoken"], " or "
    return MissingPackage(what, word.join(lacking), install=pip_line(lacking))
