"""Activation: an engine with a policy gets Foveate's worker and scheduler.

vLLM calls its plug-ins before it turns an engine's arguments (``EngineArgs``) into a configuration.
So this code runs first, in the process that creates the engine, and refuses unsupported settings
before anything is started.
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
from foveate.vllm.startup.config_checks import check_foreseen
from foveate.vllm.startup.engine_checks import check_arguments, check_engine
from foveate.vllm.startup.options import CLASSES, HERE, check_once
from foveate.vllm.startup.support import check_model, check_parallel, check_stages

logger = logging.getLogger("vllm.foveate")  # vLLM prints only loggers below its own name
UNSET = ("auto", None)
"""vLLM's values of a class option that is not set."""


def wrap_create_config(create: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap vLLM's ``EngineArgs.create_engine_config``: activate Foveate and check the configuration
    if there is a policy, and change nothing otherwise.
    """

    @wraps(create)
    def create_engine_config(self: Any, *args: Any, **options: Any) -> Any:
        settings = activate(self)
        config = create(self, *args, **options)
        if settings is not None:
            check_config(config, settings)
            warn_about_cache(config.cache_config.cache_dtype)
        return config

    return create_engine_config


def activate(args: Any, environ: Mapping[str, str] = os.environ) -> Settings | None:
    """Set the worker, the scheduler and the policy in an engine's arguments. Idempotent.

    Args:
        args: vLLM's ``EngineArgs``, changed in place.
        environ: environment variables, FOVEATE_POLICY among them.

    Returns:
        The settings to serve with; None if nothing selects Foveate.

    Raises:
        InvalidParameter: Foveate's classes without a policy, or an empty policy.
        InvalidInput: an option that appears twice.
        UnsupportedEngine: another worker or scheduler, or an option that excludes Foveate.
        UnsupportedPolicy, InvalidBudget, InvalidSpec, UnknownMethod: a policy that cannot be
            served.
    """
    check_once(sys.argv[1:])
    if not is_requested(args, environ):
        return None
    settings = settings_from(args.additional_config, environ)
    for option, name in CLASSES.items():
        _set_class(args, option, name)
    check_arguments(args, settings.policies)
    args.additional_config = with_policy(args.additional_config, settings)
    return settings


def is_requested(args: Any, environ: Mapping[str, str]) -> bool:
    """Return True if the variable, the additional configuration or a class selects Foveate.

    Raises:
        InvalidParameter: the variable is set, but empty.
    """
    config = args.additional_config
    if isinstance(config, Mapping) and "foveate" in config:
        return True
    if VARIABLE in environ:
        if not environ[VARIABLE].strip():
            raise InvalidParameter(
                f"{VARIABLE} is set, but empty. Give it a policy, such as 'snapkv:budget=20%', or "
                f"unset it (unset {VARIABLE}) to serve without Foveate."
            )
        return True
    return any(HERE in str(getattr(args, _field(option))) for option in CLASSES)


def _field(option: str) -> str:
    return option[2:].replace("-", "_")


def _set_class(args: Any, option: str, name: str) -> None:
    """Set Foveate's class for an option; raise UnsupportedEngine if the user set another one."""
    value = getattr(args, _field(option))
    if value in UNSET:
        setattr(args, _field(option), name)
    elif HERE not in str(value):
        raise UnsupportedEngine(
            f"{option} {value!r} beside a policy, which needs {name}. Leave {option} out, or give "
            f"no policy (unset {VARIABLE}, and no 'foveate' in the additional configuration)."
        )


def with_policy(config: Any, settings: Settings) -> Any:
    """Return the additional configuration with the policy in it: workers on other machines do not
    see this process's environment.
    """
    if config is not None and not isinstance(config, Mapping):
        return config
    ours = (config or {}).get("foveate") or {}
    return {**(config or {}), "foveate": {"policy": settings.names[0], **ours}}


def warn_about_cache(cache_dtype: str) -> None:
    """Warn about a cache type with which vLLM itself gives wrong answers on some models."""
    if cache_dtype == "fp8_e5m2":
        logger.warning(
            "--kv-cache-dtype fp8_e5m2: vLLM's answers with it are wrong on Qwen2-VL and "
            "Qwen2.5-VL, also without a policy (vllm-project/vllm#41343). Choose fp8."
        )


def check_config(config: Any, settings: Settings) -> None:
    """Refuse a configuration that cannot be served. Called before an engine is started, and again
    in its workers.

    Raises:
        UnsupportedEngine, UnsupportedPolicy, ProfileMismatch: see the functions that it calls.
    """
    check_engine(config, settings.policies)
    check_model(config.model_config)
    for policy in settings.policies:
        check_stages(policy, config.parallel_config.pipeline_parallel_size)
        check_parallel(
            policy,
            config.parallel_config.tensor_parallel_size,
            config.model_config.get_total_num_kv_heads(),
        )
    check_foreseen(config, settings.policies)
