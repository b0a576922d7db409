"""The layouts that are known, and converting a directory of one of them."""

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
    """A layout: its name, and how a directory in it is converted."""

    name: str
    plan: Callable[[ConfigFacts, Path, Path | None], ConversionPlan]


LAYOUTS = (
    Layout("LLaVA-1.5", plan_llava),
    Layout("MobileVLM V2", plan_mobilevlm),
    Layout("InternVL-Chat 1.5", plan_internvl),
    Layout("Qwen-VL", plan_qwen_vl),
)


def convert(source: Path, target: Path, vision: Path | None = None, shard: int = SHARD) -> Layout:
    """Writes a checkpoint in its authors' layout as a directory that transformers loads, after
    ``import foveate.models``, with processor and chat template.

    The directory appears when it is complete. Weights keep their values and dtypes, and pass
    through memory a shard at a time. LLaVA-1.5 and MobileVLM get one more token, ``<image>``, where
    their vocabulary has no row for it; its weights are the mean of the others', so that no answer
    contains it.

    Args:
        source: the original, as it was downloaded.
        target: where to; it must not exist.
        vision: directory of the CLIP tower, for a LLaVA or a MobileVLM whose weights lack it.
        shard: the most bytes of a file of weights.

    Raises:
        UnsupportedModel: none of the layouts, or a variant that is not known.
        ModelNotFound: a file is missing or damaged.
        InvalidInput: weights that do not fit the configuration.
        InvalidParameter: there is something at ``target``.
        CannotWrite: the disk is full, for example.
    """
    facts = read_facts(source)
    layout = next((one for one in LAYOUTS if one.name == layout_of(facts.entries)), None)
    if layout is None:
        known = ", ".join(each.name for each in LAYOUTS)
        raise UnsupportedModel(
            f"{str(source)!r} is none of {known} in its authors' layout (model_type "
            f"{facts.get('model_type')!r} in config.json). If transformers knows it, use it as it "
            "is."
        )
    if facts.get("quantization_config"):
        raise UnsupportedModel(
            f"the weights in {str(source)!r} are quantized (quantization_config in config.json). "
            "Convert the model that they were made from."
        )
    with new_folder(target) as folder:
        write(layout.plan(facts, source, vision), folder, shard)
    return layout
