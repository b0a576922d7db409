"""What a converter has found out about an original before any weight is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel, ProcessorMixin

from foveate_lab.convert.rules import WeightRule


@dataclass(frozen=True, kw_only=True)
class ConversionPlan:
    """All that is needed to write the model.

    Attributes:
        model: its class here.
        config: its configuration.
        processor: what reads its prompts, with tokenizer and chat template.
        rules: what becomes of each weight.
        sources: directories whose weights it has, in order.
        generation: what ends an answer, for ``generation_config.json``.
    """

    model: type[PreTrainedModel]
    config: PreTrainedConfig
    processor: ProcessorMixin
    rules: tuple[WeightRule, ...]
    sources: tuple[Path, ...]
    generation: dict[str, Any] = field(default_factory=dict)
