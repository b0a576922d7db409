"""Loading any model that transformers knows, from a directory or from the hub, and the demo's."""

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

from foveate.defaults import SEES, SHIPPED, DeviceMap, DtypeName
from foveate.errors import (
    FoveateError,
    InvalidParameter,
    MissingPackage,
    ModelNotFound,
    UnsupportedModel,
)
from foveate.hf import compress
from foveate.loading.checkpoint import check_loaded, silent
from foveate.loading.lacking import missing_package


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


def load(
    name: str,
    trust_remote_code: bool = False,
    device_map: DeviceMap | None = None,
    dtype: DtypeName = "auto",
) -> Loaded:
    """The model in a directory or on the hub, or one that comes with Foveate.

    It goes to the GPU if there is one, or its layers to several devices as ``device_map`` says;
    each layer's cache stands where the layer does. The weights keep their dtype unless another one
    is given, and float16 becomes float32 on a CPU where none is. Code that comes with it runs only
    if ``trust_remote_code``; it is never asked about.

    Raises:
        ModelNotFound: no model, no weights or no tokenizer at that place.
        UnsupportedModel: transformers or Foveate cannot use it, or only with code that is not
            trusted, or its class does not use all of its weights; the message says why.
        MissingPackage: the processor or tokenizer needs one (torchvision, sentencepiece), or a
            ``device_map`` is given, and accelerate is not installed.
        InvalidParameter: a ``device_map`` for a model that comes with Foveate.
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
    source, config = opened(name, trust_remote_code)
    sees = has_vision(config)
    early = _reader_if_whole(source, sees)  # a missing package is said before the wait
    model = _model(source, config, device_map, dtype)
    compress(model, "full")  # refuses what cannot be compressed
    placed = model.eval() if device_map else _placed(model, dtype)  # type: ignore[no-untyped-call]
    return Loaded(name, placed, early or read_reader(source, sees), sees)


def outline(name: str, trust_remote_code: bool = False) -> Loaded:
    """The same model without its weights, on no device: enough to see how long prompts are.

    Raises:
        FoveateError: as ``load`` does.
    """
    if is_shipped(name):
        return _shipped(name, "auto")
    source, config = opened(name, trust_remote_code)
    sees = has_vision(config)
    return Loaded(name, without_weights(source, config), read_reader(source, sees), sees)


def is_shipped(name: str) -> bool:
    """Whether that names a model of Foveate's, and not a directory of the same name."""
    return name in SHIPPED and not Path(name).is_dir()


class ModelSource(NamedTuple):
    """What was asked for, where transformers finds it, and whether its code may run.

    Every ``from_pretrained`` here gets ``allowed``: left out, transformers asks on standard input.
    """

    name: str
    place: str
    trusted: bool

    @property
    def allowed(self) -> dict[str, bool]:
        return {"trust_remote_code": self.trusted}

    def check_code(self, error: ValueError) -> None:
        """Raises UnsupportedModel if that is why transformers raised an error."""
        if "trust_remote_code" in str(error):
            files = Path(self.place).glob("*.json")
            naming = [
                path.name for path in sorted(files) if '"auto_map"' in path.read_text("utf-8")
            ]
            self.refuse(f"auto_map in {' and '.join(naming) or 'its configuration'}", error)

    def refuse(self, what: str, error: ValueError | None = None) -> NoReturn:
        raise UnsupportedModel(
            f"{self.name!r} brings code of its own ({what}), and none of it was run: it could do "
            "all that you can. If you have read it and trust it, add --trust-remote-code "
            "(trust_remote_code=True in Python)."
        ) from error


def _shipped(name: str, dtype: DtypeName) -> Loaded:
    """Load a model that comes with Foveate."""
    made = torch.float32 if dtype == "auto" else getattr(torch, dtype)
    model, reader = demo("vision" if name == SEES else "smollm2").load(made)
    return Loaded(SHIPPED[name], _placed(model, dtype), reader, sees=name == SEES)


def place_of(name: str) -> str:
    """What transformers is to load: a directory that exists, or a name on the hub."""
    if not name.strip():  # which Path would take for the current directory
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
        what = "is a file" if path.exists() else "does not exist"
        hint = "Give a directory that save_pretrained wrote, or a hub id such as owner/model."
        raise ModelNotFound(f"the model directory {name!r} {what}. {hint}")
    return name


def has_vision(config: PreTrainedConfig) -> bool:
    """Return whether a model of this configuration takes images."""
    return type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


def opened(name: str, trust_remote_code: bool) -> tuple[ModelSource, PreTrainedConfig]:
    """Find a model that does not come with Foveate, and read its configuration.

    Directories in their authors' layout are refused. transformers knows the models that
    ``foveate convert`` makes of such: importing them registers them.
    """
    import foveate.models  # noqa: F401

    source = ModelSource(name, place_of(name), trust_remote_code)
    layout = authors_layout(Path(source.place))
    if layout is not None:
        raise UnsupportedModel(
            f"{source.name!r} is a {layout} in its authors' layout, which transformers does "
            f"not read. Convert it first: foveate convert {source.name} NEW_DIR."
        )
    return source, read_config(source)


def without_weights(
    source: ModelSource, config: PreTrainedConfig, **options: Any
) -> PreTrainedModel:
    """Make a model of the configuration on the "meta" device.

    Raises:
        UnsupportedModel: transformers cannot make it.
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
    """What the model's configuration says; raises as ``load`` does."""
    name, place, _ = source
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(place, **source.allowed)
    except OSError as error:
        what = "directory with a model" if Path(place).is_dir() else "directory and no hub model"
        raise ModelNotFound(f"no {what} named {name!r}: {_first(error)}") from error
    except ValueError as error:
        source.check_code(error)
        raise UnsupportedModel(f"transformers cannot read {name!r}: {_first(error)}") from error
    if (kernel := _kernel(config)) and not source.trusted:
        source.refuse(f"attn_implementation={kernel!r} in config.json")
    return config


def _kernel(config: PreTrainedConfig) -> str:
    """The repository whose compiled code the configuration asks for as its attention, if any."""
    inner = (getattr(config, name, None) for name in config.sub_configs)
    kernels = (str(getattr(each, "_attn_implementation", "")) for each in (config, *inner))
    return next((one for one in kernels if "/" in one), "")


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
                source.place,
                config=config,
                dtype=dtype,
                device_map=device_map,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # check_loaded refuses them, and names them
                **source.allowed,
            )
    except (OSError, SafetensorError) as error:
        raise ModelNotFound(f"no weights found at {name!r}: {_first(error)}") from error
    except ValueError as error:
        source.check_code(error)
        raise UnsupportedModel(f"transformers cannot load {name!r}: {_first(error)}") from error
    loaded: PreTrainedModel = model
    check_loaded(name, loaded, info)
    return loaded


def _reader_if_whole(source: ModelSource, sees: bool) -> Any:
    """What reads prompts; None where something else than a package is missing, which is said after
    what is wrong with the model.

    Raises:
        MissingPackage: one that it needs.
    """
    try:
        return read_reader(source, sees)
    except MissingPackage:
        raise
    except FoveateError:
        return None


def read_reader(source: ModelSource, sees: bool) -> Any:
    """The processor of a model that sees, the tokenizer of one that does not."""
    name, kind = source.name, "processor" if sees else "tokenizer"
    auto = AutoProcessor if sees else AutoTokenizer
    try:
        return auto.from_pretrained(source.place, **source.allowed)
    except (AttributeError, ImportError, OSError, ValueError) as error:
        if lacking := missing_package(f"the {kind} of {name!r}", error, source.place):
            raise lacking from error
        if isinstance(error, ImportError):
            raise UnsupportedModel(
                f"the {kind} of {name!r} needs a package that is not installed: "
                f"{' '.join(str(error).split())}"
            ) from error
        if isinstance(error, AttributeError):
            raise UnsupportedModel(
                f"transformers cannot load the {kind} of {name!r}: {_first(error)}"
            ) from error
        if isinstance(error, ValueError):
            source.check_code(error)
        raise ModelNotFound(f"no {kind} found at {name!r}: {_first(error)}") from error


def _placed(model: PreTrainedModel, dtype: DtypeName) -> PreTrainedModel:
    """On the GPU if there is one, otherwise on the CPU, whose float16 arithmetic is very slow: it
    has it only where it is asked for.
    """
    model.eval()  # type: ignore[no-untyped-call]
    if torch.cuda.is_available():
        model.to("cuda")  # type: ignore[arg-type]
    elif model.dtype == torch.float16 and dtype == "auto":
        model.float()  # type: ignore[no-untyped-call]
    return model


def _first(error: Exception) -> str:
    """The first line of a message that may be long."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def demo(module: str = "") -> Any:
    """Return the demo's package, or a module of it such as "album".

    Raises:
        MissingPackage: ``foveate-demo`` is not installed.
    """
    try:
        return import_module(f"foveate_demo.{module}" if module else "foveate_demo")
    except ModuleNotFoundError as error:
        if error.name != "foveate_demo":
            raise
        raise MissingPackage("the demo model", "foveate-demo", "demo") from error


def authors_layout(folder: Path) -> str | None:
    """Return the name of the authors' layout that a directory is in; None if it is in none of those
    that ``foveate convert`` knows, or has no readable ``config.json``.
    """
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return layout_of(config) if isinstance(config, dict) else None


def layout_of(config: Mapping[str, Any]) -> str | None:
    """Return the name of the authors' layout that a configuration is of, or None."""
    kind, architectures = config.get("model_type"), config.get("architectures") or ()
    if "mm_vision_tower" in config and any("LlavaLlama" in str(name) for name in architectures):
        return "LLaVA-1.5"
    if kind == "qwen" and "visual" in config:
        return "Qwen-VL"
    return {"mobilevlm": "MobileVLM V2", "internvl_chat": "InternVL-Chat 1.5"}.get(kind or "")
