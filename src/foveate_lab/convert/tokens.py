"""Conversion of tokenizers to transformers, and generation settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors
from transformers import TokenizersBackend

from foveate_lab.convert.weights import json_file

BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"


def llama(backend: Tokenizer, folder: Path, special: Sequence[str] = ()) -> Any:
    """Wrap a tokenizer that prepends ``<s>``, with further special tokens.

    The padding token is that of ``tokenizer_config.json``, or ``<unk>`` as in LLaVA.
    """
    backend.add_special_tokens([AddedToken(name, normalized=False) for name in special])
    begin = backend.token_to_id(BEGIN)
    backend.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN}:0 $A:0", pair=f"{BEGIN}:0 $A:0 $B:1", special_tokens=[(BEGIN, begin)]
    )
    pad = json_file(folder / "tokenizer_config.json").get("pad_token") or UNKNOWN
    padding = pad if isinstance(pad, str) else pad["content"]
    return wrapped(backend, pad=padding, bos_token=BEGIN, eos_token=END, unk_token=UNKNOWN)


def wrapped(backend: Tokenizer, pad: str, **special: Any) -> Any:
    """Wrap a tokenizer for transformers; batches are padded on the left, as generation needs."""
    return TokenizersBackend(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        pad_token=pad,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        **special,
    )


def ends(tokenizer: Any, *also: str) -> dict[str, Any]:
    """Return the entries of ``generation_config.json``: stop tokens and greedy decoding."""
    extra_stops = [int(tokenizer.convert_tokens_to_ids(name)) for name in also]
    stop = [int(tokenizer.eos_token_id), *extra_stops]
    return {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": stop if extra_stops else stop[0],
        "pad_token_id": tokenizer.pad_token_id,
        "do_sample": False,
    }
