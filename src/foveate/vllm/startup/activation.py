"""One variable: where a policy is given, an engine gets Foveate's worker and scheduler.

vLLM calls its plug-ins before it reads an engine's arguments (``EngineArgs``), so this stands
before the configuration that is made of them, in the process that asks for an engine: what cannot
be served is refused there, before anything is started.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from foveate.defaults import VARIABLE
from foveate.errors import InvalidParameter, UnsupportedEngine
from foveate.vllm.plans.settings import Settings, settings_from
from foveate.vllm.startup.companions import check_engine, check_given
from foveate.vllm.startup.foreseen import check_foreseen
from foveate.vllm.startup.options import CLASSES, HERE, check_once
from foveate.vllm.startup.support import check_model, check_parallel

logger = logging.getLogger("vllm.foveate")  # vLLM prints the loggers below its own name
UNSET = ("auto", None)
"""What vLLM has for a class where none is named."""


def activated(create: Callable[..., Any]) -> Callable[..., Any]:
    """VLLM's ``EngineArgs.create_engine_config``, which activates and checks where a policy is
    given, and is vLLM's own where there is none.
    """

    @wraps(create)
    def create_engine_config(self: Any, *args: Any, **options: Any) -> Any:
        settings = activate(self)
        config = create(self, *args, **options)
        if settings is not None:
            check(config, settings)
            warn(config.cache_config.cache_dtype)
        return config

    return create_engine_config


def activate(args: Any, environ: Mapping[str, str] = os.environ) -> Settings | None:
    """Give an engine's arguments the worker, the scheduler and the policy; any number of times.

    Args:
        args: vLLM's ``EngineArgs``, changed in place.
        environ: where FOVEATE_POLICY may stand.

    Returns:
        What the engine is to serve with; None where nothing asks for Foveate.

    Raises:
        InvalidParameter: Foveate's classes without a policy, or an empty one.
        InvalidInput: an option that vLLM is given twice.
        UnsupportedEngine: another worker or scheduler, or an option, that is in the way.
        UnsupportedPolicy, InvalidBudget, InvalidSpec, UnknownMethod: a policy that cannot be
            served.
    """
    check_once(sys.argv[1:])
    if not is_requested(args, environ):
        return None
    settings = settings_from(args.additional_config, environ)
    for option, name in CLASSES.items():
        _name(args, option, name)
    check_given(args, settings.policies)
    args.additional_config = with_policy(args.additional_config, settings)
    return settings


def is_requested(args: Any, environ: Mapping[str, str]) -> bool:
    """Whether anything asks for Foveate: the variable, the additional configuration, or a class.

    Raises:
        InvalidParameter: the variable is there, and empty.
    """
    config = args.additional_config
    if isinstance(config, Mapping) and "foveate" in config:
        return True
    if VARIABLE in environ:
        if not environ[VARIABLE].strip():
            raise InvalidParameter(
                f"{VARIABLE} is set, and empty. Give it a policy, such as 'snapkv:budget=20%', or "
                f"unset it (unset {VARIABLE}) to serve without Foveate."
            )
        return True
    return any(HERE in str(getattr(args, _field(option))) for option in CLASSES)


def _field(option: str) -> str:
    return option[2:].replace("-", "_")


def _name(args: Any, option: str, name: str) -> None:
    """Foveate's class for that option, unless another one is there."""
    value = getattr(args, _field(option))
    if value in UNSET:
        setattr(args, _field(option), name)
    elif HERE not in str(value):
        raise UnsupportedEngine(
            f"{option} {value!r} beside a policy, which needs {name}. Leave {option} out, or give "
            f"no policy (unset {VARIABLE}, and no 'foveate' in the additional configuration)."
        )


def with_policy(config: Any, settings: Settings) -> Any:
    """Return the additional configuration with the policy in it, so that workers on other machines,
    which have other environments, know it as well.
    """
    if config is not None and not isinstance(config, Mapping):
        return config
    ours = (config or {}).get("foveate") or {}
    return {**(config or {}), "foveate": {"policy": settings.names[0], **ours}}


def warn(cache_dtype: str) -> None:
    """Warn about a type of cache with which stock vLLM answers wrongly on some models."""
    if cache_dtype == "fp8_e5m2":
        logger.warning(
            "--kv-cache-dtype fp8_e5m2: vLLM's answers with it are wrong on Qwen2-VL and "
            "Qwen2.5-VL, also without a policy (vllm-project/vllm#41343). Choose fp8."
        )


def check(config: Any, settings: Settings) -> None:
    """Refuse what cannot be served, as far as the configuration tells it: before an engine is
    started, and again in its workers.

    Raises:
        UnsupportedEngine, UnsupportedPolicy, ProfileMismatch: as the functions that it calls.
    """
    check_engine(config, settings.policies)
    check_model(config.model_config)
    for policy in settings.policies:
        check_parallel(
            policy,
            config.parallel_config.tensor_parallel_size,
            config.model_config.get_total_num_kv_heads(),
        )
    check_foreseen(config, settings.policies)
