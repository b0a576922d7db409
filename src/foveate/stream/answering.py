"""A question about a stream: answered on a branch, so that the stream is not disturbed."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import DynamicCache

from foveate.chat.asking import Answer, generate_options, said
from foveate.hf import Session
from foveate.hf.endless.endless import finish
from foveate.hf.endless.fetched import Made, looked_at, put_back
from foveate.hf.endless.reindexed import Turned
from foveate.hf.model.internals import CACHE
from foveate.stream.elsewhere import Offloaded


def answer(
    session: Session,
    processor: Any,
    branch: DynamicCache,
    ids: Int[Tensor, "1 t"],
    options: Mapping[str, Any],
) -> Answer:
    """The answer to a question's tokens; ``branch`` is written to."""
    model = session.model
    finish(branch)
    session.adopt(branch)
    stats = session.stats
    # generate wants ids of all tokens held, and reads those alone that are new
    whole = torch.cat([ids[:, :1].expand(1, branch.get_seq_length()), ids], dim=1)
    output = model.generate(  # type: ignore[operator]
        input_ids=whole,
        attention_mask=torch.ones_like(whole),
        return_dict_in_generate=False,
        **{CACHE: branch},
        **generate_options(model, processor, options, whole.shape[1]),
    )
    return said(model, processor, output[0, whole.shape[1] :], options, stats)


def fetch(
    session: Session,
    elsewhere: Offloaded,
    branch: DynamicCache,
    ids: Int[Tensor, "1 t"],
    ways: Sequence[Turned],
) -> None:
    """Puts back into the branch what a question's tokens are about; they are read once for that."""
    asking, made = copy.deepcopy(branch), Made(q={})
    finish(asking)
    with looked_at(asking, made):
        session.prefill(input_ids=ids, **{CACHE: asking})
    returning = elsewhere.fetch(branch, made, ways)
    if returning is not None:
        put_back(branch, elsewhere.columns, returning)
