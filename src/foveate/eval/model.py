"""Loading any model that transformers knows, from a directory or from the hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
)

from foveate.backends.hf import compress
from foveate.core.errors import ModelNotFound, UnsupportedModel

SEES, READS = "demo", "smollm2"
SHIPPED = {SEES: "Foveate-Demo-0.14B", READS: "SmolLM2-135M-Instruct"}


@dataclass(frozen=True)
class Loaded:
    """A model with what reads its prompts: a processor if ``sees``, otherwise a tokenizer."""

    name: str
    model: PreTrainedModel
    reader: Any
    sees: bool

    @property
    def tokenizer(self) -> Any:
        """What turns tokens into text."""
        return self.reader.tokenizer if self.sees else self.reader


def load(name: str) -> Loaded:
    """The model in a directory or on the hub, or one that comes with Foveate.

    It goes to the GPU if there is one. The weights keep their dtype, but for float16 on a CPU.

    Raises:
        ModelNotFound: no model, no weights or no tokenizer at that place.
        UnsupportedModel: transformers or Foveate cannot use it; the message says why.
    """
    if name in SHIPPED and not Path(name).is_dir():
        return _shipped(name)
    place = _place(name)
    config = _config(name, place)
    sees = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    model = _model(name, place, config, sees)
    compress(model, "full")  # refuses what cannot be compressed, before anything else is loaded
    return Loaded(name, _placed(model), _reader(name, place, sees), sees)


def _shipped(name: str) -> Loaded:
    """A model that comes with Foveate; imported here, as loading its code takes a while."""
    from foveate.demo import smollm2, vision

    model, reader = vision.load() if name == SEES else smollm2.load()
    return Loaded(SHIPPED[name], _placed(model), reader, sees=name == SEES)


def _place(name: str) -> str:
    """What transformers is to load: a directory that exists, or a name on the hub."""
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFound(
                f"{name!r} holds no model: there is no config.json in it. Give a directory that "
                "save_pretrained wrote."
            )
        return str(path)
    if path.exists() or name[0] in "./~" or name.count("/") > 1:
        what = "is a file" if path.exists() else "does not exist"
        hint = "Give a directory that save_pretrained wrote, or a hub id such as owner/model."
        raise ModelNotFound(f"the model directory {name!r} {what}. {hint}")
    return name


def _config(name: str, place: str) -> PreTrainedConfig:
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(place, trust_remote_code=False)
    except OSError as error:
        what = "directory with a model" if Path(place).is_dir() else "directory and no hub model"
        raise ModelNotFound(f"no {what} named {name!r}: {_first(error)}") from error
    except ValueError as error:
        raise UnsupportedModel(f"transformers cannot read {name!r}: {_first(error)}") from error
    return config


def _model(name: str, place: str, config: PreTrainedConfig, sees: bool) -> PreTrainedModel:
    auto = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    try:
        model: PreTrainedModel = auto.from_pretrained(place, config=config, dtype="auto")
    except (OSError, SafetensorError) as error:
        raise ModelNotFound(f"no weights found at {name!r}: {_first(error)}") from error
    except ValueError as error:
        raise UnsupportedModel(f"transformers cannot load {name!r}: {_first(error)}") from error
    return model


def _reader(name: str, place: str, sees: bool) -> Any:
    """The processor of a model that sees, the tokenizer of one that does not."""
    kind = "processor" if sees else "tokenizer"
    try:
        return (AutoProcessor if sees else AutoTokenizer).from_pretrained(place)
    except ImportError as error:
        raise UnsupportedModel(
            f"the {kind} of {name!r} needs a package that is not installed (often torchvision): "
            f"{_first(error)}"
        ) from error
    except (OSError, ValueError) as error:
        raise ModelNotFound(f"no {kind} found at {name!r}: {_first(error)}") from error


def _placed(model: PreTrainedModel) -> PreTrainedModel:
    """On the GPU if there is one, otherwise on the CPU, whose float16 arithmetic is very slow."""
    model.eval()  # type: ignore[no-untyped-call]
    if torch.cuda.is_available():
        model.to("cuda")  # type: ignore[arg-type]
    elif model.dtype == torch.float16:
        model.float()  # type: ignore[no-untyped-call]
    return model


def _first(error: Exception) -> str:
    """The first line of a message that may be long."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
