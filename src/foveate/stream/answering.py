"""A question about a stream: answered on a branch, so that the stream is not disturbed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import DynamicCache

from foveate.backends.hf import Session, Stats
from foveate.backends.hf.asked import ends
from foveate.backends.hf.endless import finish
from foveate.backends.hf.internals import CACHE
from foveate.errors import InvalidInput

LONGEST = 256
"""Tokens of an answer where neither the caller nor the model's generation settings say."""

_OURS = (
    "input_ids",
    "inputs",
    "inputs_embeds",
    "attention_mask",
    "past_key_values",
    "cache",
    "cache_implementation",
    "use_cache",
    "return_dict_in_generate",
    "assistant_model",
)
_SEVERAL = ("num_beams", "num_return_sequences")


class Answer(NamedTuple):
    """What the model said. ``ids`` [n] are its tokens as they were generated, without the one that
    ends it; ``ended`` says why it ended: "eos", or "length" (or a stop string). ``stats`` are of
    what was held when the question came.
    """

    text: str
    ids: Int[Tensor, "n"]
    ended: Literal["eos", "length"]
    stats: Stats


def check(model: Any, asked: Mapping[str, Any]) -> None:
    """Raises InvalidInput for arguments of ``generate`` that a stream decides, or cannot have."""
    for name in _OURS:
        if asked.get(name) is not None:
            raise InvalidInput(f"{name}=... is not for a stream, which sees to it: leave it out.")
    settings = asked.get("generation_config") or model.generation_config
    for name in _SEVERAL:
        count = asked.get(name, getattr(settings, name, None)) or 1
        if count > 1:
            raise InvalidInput(f"{name}={count}: a stream gives one answer at a time. Leave it 1.")


def answer(
    session: Session,
    processor: Any,
    branch: DynamicCache,
    ids: Int[Tensor, "1 t"],
    asked: Mapping[str, Any],
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
        **{**_length(model, asked), **asked},
    )
    said = output[0, whole.shape[1] :]
    ended = len(said) > 0 and int(said[-1]) in ends(model)
    said = said[:-1] if ended else said
    tokenizer = getattr(processor, "tokenizer", processor)
    text = tokenizer.decode(said, skip_special_tokens=True).strip()
    return Answer(text, said.cpu(), "eos" if ended else "length", stats)


def _length(model: Any, asked: Mapping[str, Any]) -> dict[str, int]:
    """The most tokens of an answer; transformers by itself counts the stream in."""
    own = asked.get("generation_config") or model.generation_config
    told = getattr(own, "max_new_tokens", None) or asked.get("max_length")
    return {} if told else {"max_new_tokens": LONGEST}
