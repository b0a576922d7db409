"""Plan of a conversion, made before any weight is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel, ProcessorMixin

from foveate_lab.convert.rules import WeightRule


@dataclass(frozen=True, kw_only=True)
class ConversionPlan:
    """Model, processor, weight rules and sources of a conversion.

    Attributes:
        model: its class in transformers or Foveate.
        config: its configuration.
        processor: its processor, with tokenizer and chat template.
        rules: renaming rules for its weights.
        sources: directories to read weights from, in order.
        generation: end-of-answer tokens, for ``generation_config.json``.
    """

    model: type[PreTrainedModel]
    config: PreTrainedConfig
    processor: ProcessorMixin
    rules: tuple[WeightRule, ...]
    sources: tuple[Path, ...]
    generation: dict[str, Any] = field(default_factory=dict)
