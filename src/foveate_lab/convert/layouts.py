"""Supported layouts, and the conversion of a directory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from foveate.errors import UnsupportedModel
from foveate.loading.model import layout_of
from foveate_lab.convert.facts import ConfigFacts, read_facts
from foveate_lab.convert.internvl import plan_internvl
from foveate_lab.convert.llava import plan_llava, plan_mobilevlm
from foveate_lab.convert.plan import ConversionPlan
from foveate_lab.convert.qwen_vl import plan_qwen_vl
from foveate_lab.convert.write import SHARD, new_folder, write


@dataclass(frozen=True)
class Layout:
    """Layout of a checkpoint: its name and the planner of its conversion."""

    name: str
    plan: Callable[[ConfigFacts, Path, Path | None], ConversionPlan]


LAYOUTS = (
    Layout("LLaVA-1.5", plan_llava),
    Layout("MobileVLM V2", plan_mobilevlm),
    Layout("InternVL-Chat 1.5", plan_internvl),
    Layout("Qwen-VL", plan_qwen_vl),
)


def convert(source: Path, target: Path, vision: Path | None = None, shard: int = SHARD) -> Layout:
    """Convert a checkpoint in its authors' layout to a directory that transformers loads.

    Loading it needs ``import foveate.models``; processor and chat template are included. The
    directory appears when it is complete. Weights keep their values and dtypes, and are copied one
    shard at a time. LLaVA-1.5 and MobileVLM get one more token, ``<image>``, if their vocabulary
    has no row for it; its weights are the mean of the others', so that no answer contains it.

    Args:
        source: the original, as it was downloaded.
        target: the directory to write; it must not exist.
        vision: directory of the CLIP tower, for a LLaVA or a MobileVLM whose weights lack it.
        shard: maximum bytes per file of weights.

    Raises:
        UnsupportedModel: an unknown layout, or an unknown variant.
        ModelNotFound: a file is missing or damaged.
        InvalidInput: weights that do not fit the configuration.
        InvalidParameter: ``target`` exists.
        CannotWrite: the disk is full, for example.
    """
    facts = read_facts(source)
    layout = next((layout for layout in LAYOUTS if layout.name == layout_of(facts.entries)), None)
    if layout is None:
        known = ", ".join(layout.name for layout in LAYOUTS)
        raise UnsupportedModel(
            f"{str(source)!r} is not in the authors' layout of {known} (model_type "
            f"{facts.get('model_type')!r} in config.json). If transformers supports it, use it "
            "without converting."
        )
    if facts.get("quantization_config"):
        raise UnsupportedModel(
            f"the weights in {str(source)!r} are quantized (quantization_config in config.json). "
            "Convert the unquantized model."
        )
    with new_folder(target) as folder:
        write(layout.plan(facts, source, vision), folder, shard)
    return layout
