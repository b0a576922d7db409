"""Loading of models that transformers supports, from a directory or the hub, and of the demo's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

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

from foveate.defaults import READS, SCANS, SEES, SHIPPED, DeviceMap, DtypeName
from foveate.errors import (
    FoveateError,
    InvalidParameter,
    MissingPackage,
    ModelNotFound,
    UnsupportedModel,
)
from foveate.hf import compress
from foveate.loading.checkpoint import check_loaded, silent
from foveate.loading.requirements import missing_package


@dataclass(frozen=True)
class Loaded:
    """A model with its ``reader``: a processor if it takes images (``sees``), else a tokenizer."""

    name: str
    model: PreTrainedModel
    reader: Any
    sees: bool

    @property
    def tokenizer(self) -> Any:
        """Tokenizer of the model."""
        return self.reader.tokenizer if self.sees else self.reader


def load(
    name: str,
    trust_remote_code: bool = False,
    device_map: DeviceMap | None = None,
    dtype: DtypeName = "auto",
) -> Loaded:
    """Load a model from a directory or the hub, or a model that ships with Foveate.

    It goes to the GPU if there is one, or its layers to several devices by ``device_map``; each
    layer's cache is on the layer's device. Weights keep their dtype unless ``dtype`` is set, but
    "auto" converts float16 to float32 on a CPU. Code that comes with the model runs only with
    ``trust_remote_code``; there is no prompt for it.

    Raises:
        ModelNotFound: no model, no weights or no tokenizer there.
        UnsupportedModel: transformers or Foveate cannot use it, or only with untrusted code, or its
            class does not use all of its weights; the message has the reason.
        MissingPackage: the processor or tokenizer needs a package (torchvision, sentencepiece), or
            ``device_map`` needs accelerate.
        InvalidParameter: a ``device_map`` for a model that ships with Foveate.
    """
    if is_shipped(name):
        if device_map is not None:
            raise InvalidParameter(
                f"device_map={device_map!r}: {name!r} is small, and stands on one device. Leave it "
                "out, or name a model of your own."
            )
        return _shipped(name, dtype)
    if device_map is not None and find_spec("accelerate") is None:
        raise MissingPackage("a device map", "accelerate", install="pip install accelerate")
    source, config = find_model(name, trust_remote_code)
    sees = has_vision(config)
    early = _try_reader(source, sees)  # report a missing package before the slow load
    model = _model(source, config, device_map, dtype)
    compress(model, "full")  # refuses models that cannot be compressed
    on_device = model.eval() if device_map else _on_device(model, dtype)  # type: ignore[no-untyped-call]
    return Loaded(name, on_device, early or read_reader(source, sees), sees)


def outline(name: str, trust_remote_code: bool = False) -> Loaded:
    """Load a model without its weights, on the "meta" device; enough to count a prompt's tokens.

    Raises:
        FoveateError: see :func:`load`.
    """
    if is_shipped(name):
        return _shipped(name, "auto")
    source, config = find_model(name, trust_remote_code)
    sees = has_vision(config)
    return Loaded(name, without_weights(source, config), read_reader(source, sees), sees)


def is_shipped(name: str) -> bool:
    """Return True if the name is a model that ships with Foveate, and no directory has it."""
    return name in SHIPPED and not Path(name).is_dir()


def reads_pages(name: str) -> bool:
    """Return True for the models that ship with Foveate and read pages, but not texts alone."""
    return is_shipped(name) and name != READS


class ModelSource(NamedTuple):
    """A model's ``name`` as the user wrote it, its ``location`` for transformers, and True if its
    code is ``trusted``.

    Every ``from_pretrained`` here gets ``allowed``: without it, transformers would prompt the user.
    """

    name: str
    location: str
    trusted: bool

    @property
    def allowed(self) -> dict[str, bool]:
        return {"trust_remote_code": self.trusted}

    def check_code(self, error: ValueError) -> None:
        """Raise UnsupportedModel if transformers raised the error because of untrusted code."""
        if "trust_remote_code" in str(error):
            files = Path(self.location).glob("*.json")
            naming = [
                path.name for path in sorted(files) if '"auto_map"' in path.read_text("utf-8")
            ]
            self.refuse(f"auto_map in {' and '.join(naming) or 'its configuration'}", error)

    def refuse(self, description: str, error: ValueError | None = None) -> NoReturn:
        raise UnsupportedModel(
            f"{self.name!r} brings code of its own ({description}), and none of it was run: it "
            "could do all that you can. If you have read it and trust it, add --trust-remote-code "
            "(trust_remote_code=True in Python)."
        ) from error


def _shipped(name: str, dtype: DtypeName) -> Loaded:
    """Load a model that ships with Foveate."""
    weights_dtype = torch.float32 if dtype == "auto" else getattr(torch, dtype)
    model, reader = _import(*_SHIPPED_IN[name]).load(weights_dtype)
    return Loaded(SHIPPED[name], _on_device(model, dtype), reader, sees=name != READS)


_SHIPPED_IN = {
    SEES: ("foveate_demo", "vision"),
    READS: ("foveate_demo", "smollm2"),
    SCANS: ("foveate_reader", "model"),
}
"""Package and module with the ``load`` function of each model that ships with Foveate."""


def locate(name: str) -> str:
    """Return the argument for transformers: an existing directory, or a name on the hub."""
    if not name.strip():  # Path("") is the current directory
        raise ModelNotFound(
            f"the model {name!r} is empty: give a directory that save_pretrained wrote, or a hub "
            "id such as owner/model."
        )
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFound(
                f"{name!r} holds no model: there is no config.json in it. Give a directory that "
                "save_pretrained wrote."
            )
        return str(path)
    if path.exists() or name[0] in "./~" or name.count("/") > 1:
        description = "is a file" if path.exists() else "does not exist"
        hint = "Give a directory that save_pretrained wrote, or a hub id such as owner/model."
        raise ModelNotFound(f"the model directory {name!r} {description}. {hint}")
    return name


def has_vision(config: PreTrainedConfig) -> bool:
    """Return True if a model with this configuration takes images."""
    return type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


def find_model(name: str, trust_remote_code: bool) -> tuple[ModelSource, PreTrainedConfig]:
    """Find a model that does not ship with Foveate, and read its configuration.

    Directories in their authors' layout are refused; ``foveate convert`` converts them. Importing
    ``foveate.models`` registers the converted types with transformers.
    """
    import foveate.models  # noqa: F401

    source = ModelSource(name, locate(name), trust_remote_code)
    layout = authors_layout(Path(source.location))
    if layout is not None:
        raise UnsupportedModel(
            f"{source.name!r} is a {layout} in its authors' layout, which transformers does "
            f"not read. Convert it first: foveate convert {source.name} NEW_DIR."
        )
    return source, read_config(source)


def without_weights(
    source: ModelSource, config: PreTrainedConfig, **options: Any
) -> PreTrainedModel:
    """Build a model from the configuration on the "meta" device.

    Raises:
        UnsupportedModel: transformers cannot build it.
    """
    try:
        with torch.device("meta"):
            model: PreTrainedModel = _auto(config).from_config(config, **options, **source.allowed)
    except (ImportError, ValueError) as error:
        if isinstance(error, ValueError):
            source.check_code(error)
        raise UnsupportedModel(f"transformers cannot make {source.name!r}: {error}") from error
    return model


def read_config(source: ModelSource) -> PreTrainedConfig:
    """Read the model's configuration; raise as :func:`load` does."""
    name, location, _ = source
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(location, **source.allowed)
    except OSError as error:
        description = (
            "directory with a model" if Path(location).is_dir() else "directory and no hub model"
        )
        raise ModelNotFound(f"no {description} named {name!r}: {_first_line(error)}") from error
    except ValueError as error:
        source.check_code(error)
        raise UnsupportedModel(
            f"transformers cannot read {name!r}: {_first_line(error)}"
        ) from error
    if (kernel := _kernel(config)) and not source.trusted:
        source.refuse(f"attn_implementation={kernel!r} in config.json")
    return config


def _kernel(config: PreTrainedConfig) -> str:
    """Return the repository of compiled attention code that the configuration names, or ""."""
    inner = (getattr(config, name, None) for name in config.sub_configs)
    implementations = (str(getattr(sub, "_attn_implementation", "")) for sub in (config, *inner))
    return next((implementation for implementation in implementations if "/" in implementation), "")


def _auto(config: PreTrainedConfig) -> Any:
    return AutoModelForImageTextToText if has_vision(config) else AutoModelForCausalLM


def _model(
    source: ModelSource,
    config: PreTrainedConfig,
    device_map: DeviceMap | None,
    dtype: DtypeName,
) -> PreTrainedModel:
    name = source.name
    try:
        with silent():
            model, info = _auto(config).from_pretrained(
                source.location,
                config=config,
                dtype=dtype,
                device_map=device_map,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # check_loaded refuses them, and names them
                **source.allowed,
            )
    except (OSError, SafetensorError) as error:
        raise ModelNotFound(f"no weights found at {name!r}: {_first_line(error)}") from error
    except ValueError as error:
        source.check_code(error)
        raise UnsupportedModel(
            f"transformers cannot load {name!r}: {_first_line(error)}"
        ) from error
    loaded: PreTrainedModel = model
    check_loaded(name, loaded, info)
    return loaded


def _try_reader(source: ModelSource, sees: bool) -> Any:
    """Return the processor or tokenizer; None on any error but a missing package, so that faults of
    the model are reported first.

    Raises:
        MissingPackage: a package that it needs.
    """
    try:
        return read_reader(source, sees)
    except MissingPackage:
        raise
    except FoveateError:
        return None


def read_reader(source: ModelSource, sees: bool) -> Any:
    """Load the processor of a model that takes images, or the tokenizer of another."""
    name, kind = source.name, "processor" if sees else "tokenizer"
    auto = AutoProcessor if sees else AutoTokenizer
    try:
        return auto.from_pretrained(source.location, **source.allowed)
    except (AttributeError, ImportError, OSError, ValueError) as error:
        if missing := missing_package(f"the {kind} of {name!r}", error, source.location):
            raise missing from error
        if isinstance(error, ImportError):
            raise UnsupportedModel(
                f"the {kind} of {name!r} needs a package that is not installed: "
                f"{' '.join(str(error).split())}"
            ) from error
        if isinstance(error, AttributeError):
            raise UnsupportedModel(
                f"transformers cannot load the {kind} of {name!r}: {_first_line(error)}"
            ) from error
        if isinstance(error, ValueError):
            source.check_code(error)
        raise ModelNotFound(f"no {kind} found at {name!r}: {_first_line(error)}") from error


def _on_device(model: PreTrainedModel, dtype: DtypeName) -> PreTrainedModel:
    """Move a model to the GPU if there is one. On a CPU, "auto" converts float16 to float32,
    because float16 arithmetic is very slow there.
    """
    model.eval()  # type: ignore[no-untyped-call]
    if torch.cuda.is_available():
        model.to("cuda")  # type: ignore[arg-type]
    elif model.dtype == torch.float16 and dtype == "auto":
        model.float()  # type: ignore[no-untyped-call]
    return model


def _first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def demo(module: str = "") -> Any:
    """Import the demo's package, or one of its modules such as "album".

    Raises:
        MissingPackage: ``foveate-demo`` is not installed.
    """
    return _import("foveate_demo", module)


def _import(package: str, module: str) -> Any:
    try:
        return import_module(f"{package}.{module}" if module else package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise MissingPackage("the demo model", "foveate-demo", "demo") from error


def authors_layout(folder: Path) -> str | None:
    """Return the name of a directory's authors' layout; None if it has none that
    ``foveate convert`` knows, or no readable ``config.json``.
    """
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return layout_of(config) if isinstance(config, dict) else None


def layout_of(config: Mapping[str, Any]) -> str | None:
    """Return the name of the authors' layout to which a configuration belongs, or None."""
    kind, architectures = config.get("model_type"), config.get("architectures") or ()
    if "mm_vision_tower" in config and any("LlavaLlama" in str(name) for name in architectures):
        return "LLaVA-1.5"
    if kind == "qwen" and "visual" in config:
        return "Qwen-VL"
    return {"mobilevlm": "MobileVLM V2", "internvl_chat": "InternVL-Chat 1.5"}.get(kind or "")
