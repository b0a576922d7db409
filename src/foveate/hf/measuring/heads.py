"""Scores of heads by their attention to the tokens that they copy, for methods whose profiles are
such scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from foveate.cache.layer import Layer
from foveate.errors import InvalidInput, suggest
from foveate.hf.attach.session import compress
from foveate.hf.layer.support import check_model, compressible_layers, model_name, text_config
from foveate.hf.measuring.calibrate import profile_of
from foveate.hf.measuring.record import Observer, observing
from foveate.hf.model.layer_settings import shared_setting
from foveate.hf.model.module_state import restored_modules
from foveate.ops.window_attention import window_attention
from foveate.policies.heads import HEAD_FILES, HeadReading, Shown, head_reading, of_kv_heads
from foveate.profiles.ledger import Ledger, fingerprint
from foveate.profiles.profile import Profile

LONGEST = 1024  # tokens of an answer, for samples without one


@runtime_checkable
class Tokenizer(Protocol):
    """The methods of a tokenizer that are used here."""

    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...


@dataclass(frozen=True)
class Watching(Observer):
    """Observer of the heads' attention at each generated token."""

    reading: HeadReading
    sample: Shown
    noticed: dict[int, list[Tensor]] = field(default_factory=dict)

    def observe(self, layer: Layer) -> Mapping[str, Tensor]:
        """Record the last query's attention, head by head."""
        weights = window_attention(layer.q[:, :, -1:], layer.k, layer.slots.visible(1), layer.scale)
        heads = weights[0].flatten(0, 1)[:, 0]
        self.noticed.setdefault(layer.ordinal, []).append(self.reading.notice(heads, self.sample))
        return {}


def calibrate_heads(
    model: nn.Module,
    method: str,
    samples: Iterable[Shown],
    tokenizer: Tokenizer,
    *,
    progress: Path | None = None,
) -> Profile:
    """Measure the profile of a method that scores heads, such as "sparsemm" or "headkv".

    Every sample is answered greedily, with the full cache, while the heads are observed: as many
    tokens as its ``answer`` has, or 1,024 if it has none.

    Args:
        model: any model that ``compress`` takes.
        method: the method; its module defines the scores.
        samples: prompts, and the spans of their tokens with their texts.
        tokenizer: the model's.
        progress: a file to which each sample is written at once; if it exists, its samples are not
            measured again. It is deleted at the end.

    Raises:
        InvalidInput: a method without head scores, a batch of several prompts, no sample that
            counts, or no head that attends to the tokens it copies.
    """
    reading, name = head_reading(method), model_name(check_model(model))
    ledger = Ledger(progress, {"heads": method, "model": name})
    for sample in samples:
        if ledger.lacks(fingerprint(sample.inputs, sample.spans, sample.answer)):
            scores = _scores(model, reading, sample, tokenizer)
            ledger.add(None if scores is None else scores.tolist())
    done = ledger.numbers
    counted = [
        torch.tensor(row, dtype=torch.float64, device="cpu") for row in done if row is not None
    ]
    if not counted:
        raise InvalidInput(
            f"none of the {len(done)} samples was answered well enough to count. Use samples that "
            "the model can answer."
        )
    mean = torch.stack(counted).mean(0)
    if not bool((mean > 0).any()):
        raise InvalidInput(
            f"no head attended to the tokens that it copied in any of the {len(counted)} samples. "
            "Check that each span has the tokens of its text."
        )
    profile = _profile(model, method, mean, len(counted))
    ledger.close()
    return profile


def import_head_scores(model: nn.Module, method: str, path: str | Path) -> Profile:
    """Return the profile of a file of head scores, in the format that a method's authors publish.

    Args:
        model: the model that the scores were measured on.
        method: "headkv", "sparsemm", "mixkv", "duo_attention", or a method that registered its
            ``foveate.policies.heads.HeadFile``.
        path: a file in the format of that method's authors: for HeadKV and SparseMM a JSON object
            that maps "layer-head", of query heads, to a list of scores; for DuoAttention a table
            (``full_attention_heads.tsv``) with a line for each layer and a column for each KV head;
            for MixKV a JSON object that maps "layer-head-key", of KV heads, to a list of
            redundancies, or a list of layers with a redundancy for each KV head. KV heads get the
            mean of the query heads that share them.

    Raises:
        InvalidInput: another method, a missing file, or one that does not fit the model.
    """
    if method not in HEAD_FILES:
        raise InvalidInput(
            f"{method!r} has no format for scores of heads. {suggest(method, HEAD_FILES)}"
        )
    kind, read, _ = HEAD_FILES[method]
    checked = check_model(model)
    config = text_config(checked)
    layers = config.num_hidden_layers
    compressed = compressible_layers(config)
    count = "num_attention_heads" if kind == "query" else "num_key_value_heads"
    heads = shared_setting(config, count, compressed)
    scores, samples = read(path)
    if scores.shape != (layers, heads):
        raise InvalidInput(
            f"{path} has scores of {scores.shape[0]} layers with {scores.shape[1]} {kind} heads, "
            f"and {model_name(checked)} has {layers} with {heads}."
        )
    return _profile(model, method, scores[compressed], samples)


def _profile(model: nn.Module, method: str, scores: Float[Tensor, "L hq"], samples: int) -> Profile:
    """Return the profile of the compressed layers' heads: KV heads get the mean of the query heads
    that share them.
    """
    config = text_config(check_model(model))
    heads = shared_setting(config, "num_key_value_heads", compressible_layers(config))
    return profile_of(model, method, of_kv_heads(scores, heads).tolist(), samples)


def _scores(
    model: Any, reading: HeadReading, sample: Shown, tokenizer: Tokenizer
) -> Float[Tensor, "L hq"] | None:
    """Answer one sample, and score the heads, layer by layer; None if the answer does not count."""
    ids: Tensor = sample.inputs["input_ids"]
    _check(sample, ids)
    watching = Watching(reading, sample)
    longest = len(tokenizer.encode(sample.answer, add_special_tokens=False)) or LONGEST
    with restored_modules(model), compress(model, observing(watching, decodes=True)):
        out = model.generate(**sample.inputs, max_new_tokens=longest, do_sample=False, num_beams=1)
    tokens = [
        tokenizer.decode([token], skip_special_tokens=True)
        for token in out[0, ids.shape[1] :].tolist()
    ]
    by_layer = []
    for layer in range(len(compressible_layers(text_config(model)))):
        noticed = torch.stack(watching.noticed[layer])[: len(tokens)]
        scores = reading.score(noticed, tokens, sample)
        if scores is None:
            return None
        by_layer.append(scores.double().cpu())
    return torch.stack(by_layer)


def _check(sample: Shown, ids: Tensor) -> None:
    if ids.shape[0] != 1:
        raise InvalidInput(f"a batch of {ids.shape[0]} prompts: give one prompt a sample.")
    indices: Sequence[int] = [index for _, span in sample.spans for index in span]
    if not indices or min(indices) < 0 or max(indices) >= ids.shape[1]:
        raise InvalidInput(
            f"the spans {[text for text, _ in sample.spans]} have no tokens, or some outside of "
            f"the prompt's {ids.shape[1]}: give indices of tokens in the prompt."
        )
