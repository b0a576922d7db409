"""The profile that is installed for a model, where its policy takes one and names none."""

from __future__ import annotations

import logging
from functools import cache, partial

from transformers import PreTrainedModel

from foveate.errors import ProfileMismatch
from foveate.hf.layer.support import model_name
from foveate.hf.model.weights import weights_digest
from foveate.policies.policy import Policy
from foveate.profiles import installed


def with_installed(policy: Policy, model: PreTrainedModel) -> Policy:
    """The policy with the profile that is installed for the model, where it came from one method
    that can do without a profile and was given none. The log, "foveate", says so, and says where
    profiles are installed for other weights of the model alone.
    """
    origin = policy.origin
    if origin is None or origin.overrides or len(origin.build.names) != 1:
        return policy
    taken = origin.build.parameters.get("profile")
    if taken is None or taken.default is not None or origin.arguments.get("profile"):
        return policy
    (name,) = origin.build.names
    try:
        path = installed.find(name, model_name(model), partial(weights_digest, model))
    except ProfileMismatch as error:
        _say(f"{name} goes without the profile that is installed: {error}", logging.WARNING)
        return policy
    if path is None:
        return policy
    _say(f"{name} takes the profile that is installed for this model: {path}", logging.INFO)
    made: Policy = origin.build(**{**origin.arguments, "profile": str(path)})
    return made


@cache  # once
def _say(what: str, level: int) -> None:
    logging.getLogger("foveate").log(level, what)
