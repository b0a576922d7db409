"""A model's attention implementation, for as long as it is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from foveate.defaults import AttentionName
from foveate.memory.operators import FusedAttention

FLASH = "flash_attention_2"


@contextmanager
def using(model: PreTrainedModel, name: AttentionName | None) -> Iterator[FusedAttention]:
    """Inside, the model attends with that implementation, its tower too; None leaves its own. What
    fused kernels did is told.

    flash_attention_2 needs no package here: what its kernels return has the shape of SDPA's, and
    they take no mask.
    """
    configs = _configs(model.config)
    before = [getattr(config, "_attn_implementation_internal", None) for config in configs]
    functions = ALL_ATTENTION_FUNCTIONS._local_mapping
    known, fused = dict(functions), FusedAttention()
    with ExitStack() as undo:
        undo.callback(functions.update, known)
        undo.callback(functions.clear)
        functions[FLASH] = partial(_flash, fused)
        for config, old in zip(configs, before, strict=True):
            undo.callback(setattr, config, "_attn_implementation_internal", old)
            if name is not None:
                config._attn_implementation_internal = name
        undo.enter_context(fused)
        yield fused


def _configs(config: Any) -> list[Any]:
    inner = [getattr(config, name, None) for name in config.sub_configs]
    return [config, *(each for one in inner if one is not None for each in _configs(one))]


def _flash(
    fused: FusedAttention,
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any = None,
    **options: Any,
) -> tuple[Tensor, None]:
    causal = bool(getattr(module, "is_causal", False)) and query.shape[2] > 1
    return fused.attended(query, value, causal=causal).transpose(1, 2), None
