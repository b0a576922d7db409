"""One budget of a policy, divided for the prompt that a model is about to read."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedModel

from foveate.cache.pairs import Form
from foveate.compression.dividing import bytes_of, divided
from foveate.errors import UnsupportedModel
from foveate.hf.layer.state import CacheState
from foveate.hf.layer.support import compressible_layers, text_config
from foveate.policies.amount import Amount
from foveate.policies.policy import Policy


def divided_for(
    model: PreTrainedModel, policy: Policy, lengths: Sequence[int], columns: int | None = None
) -> Policy:
    """The policy with its shares written out for a prompt of so many tokens in each row, in a batch
    of so many columns; itself where it leaves none open.

    Raises:
        UnsupportedModel: what a pair takes is not known before it is there.
    """
    if not policy.left_open:
        return policy
    return divided(policy, forms_of(model), lengths, columns or max(lengths))


def forms_of(model: PreTrainedModel) -> tuple[Form, ...]:
    """Of the pairs of each layer that is compressed, as the model's configuration says; they are
    held against those that come.

    Raises:
        UnsupportedModel: it does not say.
    """
    config = text_config(model)
    queries = getattr(config, "num_attention_heads", None)
    heads = getattr(config, "num_key_value_heads", None) or queries
    size = getattr(config, "head_dim", None)
    if not size and isinstance(queries, int):
        size = getattr(config, "hidden_size", 0) // queries
    if not all(isinstance(number, int) and number > 0 for number in (queries, heads, size)):
        raise UnsupportedModel(
            f"the configuration of {type(model).__name__} does not say how many bytes a pair takes "
            "(heads, and their size), so no budget can be divided before it reads. Write the "
            "shares out instead of auto, such as keep=50% and bits=4."
        )
    form = Form(heads, queries, size, size, model.dtype)  # type: ignore[arg-type]
    return (form,) * len(compressible_layers(config))


def divide_for_prompt(
    model: PreTrainedModel, state: CacheState, lengths: Sequence[int], columns: int
) -> None:
    """Divides the budget of a cache whose prompt begins, and will have these lengths. What is held
    of earlier turns is in so many bits already, so that of later ones the bytes alone are new.
    """
    forms = forms_of(model)
    if state.policy.left_open:
        state.divide(divided(state.given, forms, lengths, columns), forms)
        return
    allowed = Amount.of(f"{bytes_of(state.given.amount, forms, lengths)}B")
    state.divide(state.policy.but(budget=allowed), forms)
