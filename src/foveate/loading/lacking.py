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
"""Packages that processors and tokenizers ask for, and the module that each one is."""
VOCABULARIES = ("*.model", "*.tiktoken", "*.vocab", "spiece.*")
OF_VOCABULARIES = ("sentencepiece", "tiktoken", "protobuf")


def there(module: str) -> bool:
    """Whether it can be imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent is not there either
        return False


def named_in(message: str) -> list[str]:
    """The packages that a message of transformers names and that are not installed."""
    words = set(re.findall(r"[a-z0-9_]+", message.lower()))
    if "video_processor_mapping" in words:  # what readers of videos are looked up in, all of them
        words.add("torchvision")
    return [name for name, module in MODULES.items() if name in words and not there(module)]


def has_vocabulary(place: str) -> bool:
    """Whether a directory has a vocabulary that only a package reads; where it has none at all,
    transformers' error names the same packages. Of a hub id that is not known.
    """
    folder = Path(place)
    return not folder.is_dir() or any(next(folder.glob(one), None) for one in VOCABULARIES)


def missing_package(what: str, error: Exception, place: str) -> FoveateError | None:
    """Return the error that names the packages which ``place``, a directory or hub id, needs, and
    how to install them; None where the error of transformers is about none of them.
    """
    if broken := broken_package(error):
        return broken
    lacking = named_in(str(error))
    if not has_vocabulary(place):
        lacking = [name for name in lacking if name not in OF_VOCABULARIES]
    if not lacking:
        return None
    word = " and "
    if "tiktoken" in lacking and not there("sentencepiece"):
        # the first that transformers tries on a vocabulary, and the last, which alone it names
        lacking, word = ["sentencepiece", "tiktoken"], " or "
    return MissingPackage(what, word.join(lacking), install=pip_line(lacking))
