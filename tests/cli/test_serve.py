"""``foveate serve``: what vLLM's server is started with, what is refused, and how it ends."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foveate.cli.serve.serve import arguments, environment, run
from foveate.compression.composition import policy as policy_of
from foveate.defaults import PLACE
from foveate.methods.recommended.head_levels import LayerLevels
from foveate_demo import PROFILES

from .conftest import Foveate, refused

FOLDER, VARIABLE = "PROMETHEUS_MULTIPROC_DIR", "FOVEATE_POLICY"
WORKER, SCHEDULER = "foveate.vllm.Worker", "foveate.vllm.Scheduler"
POLICY = "mixkv:budget=20%"
MODULE = "vllm.entrypoints.openai.api_server"
# What stands in for vLLM's server: it writes down what it was given, and ends as it is told.
SERVER = """
import json, os, sys
from pathlib import Path
folder = os.environ["PROMETHEUS_MULTIPROC_DIR"]
found = {"arguments": sys.argv[1:], "folder": folder, "empty": os.listdir(folder) == []}
Path(os.environ["SEEN"]).write_text(json.dumps(found))
sys.exit(int(os.environ.get("STATUS", 0)))
"""
WAITS = """
import signal, sys, time
from pathlib import Path
number, ready = int(sys.argv[1]), Path(sys.argv[2])
signal.signal(number, lambda *_: sys.exit(7))
ready.touch()
time.sleep(30)
"""


# A server and its engine, which do as they are asked, or are deaf to it.
ENGINE = """
import os, signal, subprocess, sys, time
from pathlib import Path
if {deaf}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
engine = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(200)"])
if not {deaf}:
    signal.signal(signal.SIGTERM, lambda *_: (engine.terminate(), sys.exit()))
Path(sys.argv[1] + "~").write_text(f"{{os.getpid()}} {{engine.pid}}")
os.rename(sys.argv[1] + "~", sys.argv[1])
while True:
    time.sleep(0.1)
"""
PARENT = "import os, sys; from foveate.cli.serve.serve import run; run(sys.argv[1:], os.environ)"


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (FOLDER, VARIABLE):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """What the server was given that stands in for vLLM's; an OSError if it was not started."""
    place = tmp_path / "site" / "/".join(MODULE.split(".")[:-1])
    place.mkdir(parents=True)
    (place / "api_server.py").write_text(SERVER)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), *sys.path]))
    monkeypatch.setenv("SEEN", str(tmp_path / "seen.json"))
    return lambda: json.loads((tmp_path / "seen.json").read_text())


def config_of(words: list[str]) -> Any:
    """The additional configuration among a server's arguments."""
    return json.loads(words[words.index("--additional-config") + 1])


# ---------------------------------------------------------------------------- the command line


def test_the_server_gets_foveates_classes_and_the_settings_that_were_given() -> None:
    words = arguments("some/model", {"policy": POLICY}, [])
    assert words[:2] == ["--model", "some/model"]
    assert words[words.index("--worker-cls") + 1] == WORKER
    assert words[words.index("--scheduler-cls") + 1] == SCHEDULER
    assert config_of(words) == {"foveate": {"policy": POLICY}}


def test_all_other_options_go_to_vllm_as_they_are(foveate: Foveate, seen: Any) -> None:
    others = ["--port", "8001", "-tp", "2", "-O3", "--enforce-eager", "--limit.image=2", "--seed=1"]
    more = ["--policies", "h2o:budget=10%", "--policies", "snapkv:budget=50%", "--tiers", "4"]
    assert foveate("serve", "m", others[0], *others[1:], "--policy", POLICY, *more).exit_code == 0
    given = seen()["arguments"]
    assert given[-len(others) :] == others
    assert config_of(given)["foveate"] == {
        "policy": POLICY,
        "policies": ["h2o:budget=10%", "snapkv:budget=50%"],
        "tiers": 4,
    }


def test_what_stands_after_two_dashes_is_vllms(foveate: Foveate, seen: Any) -> None:
    assert foveate("serve", "m", "--policy", POLICY, "--", "--help").exit_code == 0
    assert seen()["arguments"][-1] == "--help"


@pytest.mark.parametrize("option", ["--additional-config", "--additional_config", "--additional"])
@pytest.mark.parametrize("joined", [False, True])
def test_the_users_additional_configuration_is_merged(option: str, joined: bool) -> None:
    given = '{"other": {"a": [1]}}'
    words = [f"{option}={given}"] if joined else [option, given]
    made = arguments("m", {"policy": POLICY}, ["--port", "1", *words])
    assert config_of(made) == {"other": {"a": [1]}, "foveate": {"policy": POLICY}}
    assert made[-2:] == ["--port", "1"]
    assert sum(word.startswith("--additional") for word in made) == 1


def test_settings_may_also_stand_in_the_users_additional_configuration() -> None:
    ours = {"foveate": {"policy": POLICY, "tiers": 2}}
    made = arguments("m", {}, ["--additional-config", json.dumps(ours)])
    assert config_of(made) == ours


def test_the_policy_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, POLICY)
    assert "--additional-config" not in arguments("m", {}, [])
    assert config_of(arguments("m", {"tiers": 2}, [])) == {"foveate": {"tiers": 2}}


def test_foveates_own_classes_may_be_named() -> None:
    plain = arguments("m", {"policy": POLICY}, [])
    given = ["--worker_cls", WORKER, f"--scheduler-cls={SCHEDULER}"]
    assert arguments("m", {"policy": POLICY}, given) == plain


# ------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--policy", "mixvk:budget=20%"], "Did you mean 'mixkv'?"),
        (["--policy", "mixkv:budget=150%"], "'150%'"),
        (["--policy", "adakv:budget=20%"], "cannot be served by vLLM"),
        (["--policy", POLICY, "--policies", "h2o:bugdet=20%"], "Did you mean 'budget'?"),
        (["--port", "8001"], "add --policy SPEC"),
        (["--tiers", "2"], "add --policy SPEC"),
        (["--policy", POLICY, "--worker-cls", "other.Worker"], "--worker-cls 'other.Worker'"),
        (["--policy", POLICY, "--scheduler_cls=my.Own"], "--scheduler-cls 'my.Own'"),
        (["--policy", POLICY, "--worker-cls"], "--worker-cls has no value"),
        (
            ["--policy", POLICY, *("--scheduler_cls", SCHEDULER) * 2],
            "--scheduler-cls is given twice",
        ),
        (["--policy", POLICY, "--additional-config", "{"], "is no JSON"),
        (["--policy", POLICY, "--additional-config", "[1]"], "is no JSON object"),
        (["--policy", POLICY, "--additional-config.a.b", "1"], "complete --additional-config"),
        (["--additional-config", '{"foveate": {"polcy": "full"}}'], "add --policy SPEC"),
        (["--additional-config", '{"foveate": 1}'], "foveate=1"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_started(
    foveate: Foveate, seen: Any, words: list[str], says: str
) -> None:
    assert says in refused(foveate("serve", "m", *words))
    with pytest.raises(OSError, match="seen"):
        seen()


@pytest.mark.parametrize("own", [("--policy", POLICY), ("--tiers", "2")])
def test_settings_in_two_places_are_refused(foveate: Foveate, own: tuple[str, str]) -> None:
    config = json.dumps({"foveate": {"policy": POLICY}})
    message = refused(foveate("serve", "m", *own, "--additional-config", config))
    assert f"with 'foveate' excludes {own[0]}" in message


def test_the_model_has_to_come_before_vllms_options(foveate: Foveate) -> None:
    message = refused(foveate("serve", "--policy", POLICY, "--port", "8001", "m"))
    assert "the model comes first, and '--port' is an option" in message


def test_options_in_a_file_that_would_be_lost_are_named(foveate: Foveate, tmp_path: Path) -> None:
    (tmp_path / "vllm.yaml").write_text("port: 8001\nadditional_config:\n  other: 1\n")
    given = ("--policy", POLICY, "--config", str(tmp_path / "vllm.yaml"))
    message = refused(foveate("serve", "m", *given))
    assert f"additional-config in {tmp_path}/vllm.yaml: give it as --additional-config" in message


def test_vllms_plug_ins_have_to_be_foveates_as_well(
    foveate: Foveate, seen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    message = refused(foveate("serve", "m", "--policy", POLICY))
    assert "VLLM_PLUGINS='other' leaves out 'foveate'" in message
    monkeypatch.setenv("VLLM_PLUGINS", "other,foveate")
    assert foveate("serve", "m", "--policy", POLICY).exit_code == 0


def test_without_vllm_its_extra_is_named(foveate: Foveate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foveate.cli.serve.serve.find_spec", lambda name: None)
    assert "pip install 'foveate[vllm]'" in refused(foveate("serve", "m", "--policy", POLICY))


# --------------------------------------------------------------------------------------- --show


def test_show_starts_nothing_and_needs_no_vllm(
    foveate: Foveate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foveate.cli.serve.serve.find_spec", lambda name: None)
    monkeypatch.setattr("foveate.cli.serve.serve.run", lambda *_: pytest.fail("started"))
    result = foveate("serve", "my model", "--policy", POLICY, "--show", "--port", "8001")
    assert result.exit_code == 0
    assert shlex.split(result.stdout)[1:] == [
        sys.executable,
        "-m",
        MODULE,
        *arguments("my model", {"policy": POLICY}, ["--port", "8001"]),
    ]


def test_what_show_prints_can_be_pasted_into_a_shell(foveate: Foveate, seen: Any) -> None:
    words = ("serve", "it's $HOME", "--additional-config", '{"a": "\'b\' \\"c\\""}')
    line = foveate(*words, "--policy", POLICY, "--show").stdout
    subprocess.run(["sh", "-c", line], check=True)
    found = seen()
    assert found["arguments"][1] == "it's $HOME"
    assert config_of(found["arguments"])["a"] == "'b' \"c\""
    assert found["empty"]
    os.rmdir(found["folder"])


def test_show_prints_the_variables_that_are_set(
    foveate: Foveate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER, "/some where")
    monkeypatch.setenv(VARIABLE, POLICY)
    words = shlex.split(foveate("serve", "m", "--show").stdout)
    assert words[:3] == [f"{FOLDER}=/some where", f"{VARIABLE}={POLICY}", sys.executable]


# --------------------------------------------------------------------------- the server's process


@pytest.mark.parametrize("status", [0, 3])
def test_the_exit_status_is_the_servers_and_its_folder_is_removed(
    foveate: Foveate, seen: Any, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setenv("STATUS", str(status))
    assert foveate("serve", "m", "--policy", POLICY).exit_code == status
    assert seen()["empty"]
    assert not Path(seen()["folder"]).exists()
    assert FOLDER not in os.environ


def test_a_folder_for_counters_that_is_set_is_used_and_kept(tmp_path: Path) -> None:
    with environment({FOLDER: str(tmp_path), "A": "1"}) as (environ, fresh):
        assert (environ, fresh) == ({FOLDER: str(tmp_path), "A": "1"}, "")
    assert tmp_path.is_dir()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_reach_the_server(tmp_path: Path, number: signal.Signals) -> None:
    ready = tmp_path / "ready"

    def send() -> None:
        end = time.monotonic() + 120
        while not ready.exists():
            if time.monotonic() > end:
                return
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    command = [sys.executable, "-S", "-c", WAITS, str(int(number)), str(ready)]
    # Under nohup this process ignores SIGHUP, and `run` does not pass on what is ignored.
    inherited = signal.signal(number, signal.default_int_handler)
    try:
        sender = threading.Thread(target=send)
        sender.start()
        assert run(command, os.environ) == 7
        sender.join()
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, inherited)


@pytest.mark.parametrize("deaf", [False, True])
def test_a_server_ends_with_foveate_serve_however_that_goes(tmp_path: Path, deaf: bool) -> None:
    """After SIGKILL the server is asked to end, and its group, of which the engine is, made to; the
    folder of its counters goes.
    """
    (tmp_path / "stand_in.py").write_text(ENGINE.format(deaf=deaf))
    counters, ready = tmp_path / "counters", tmp_path / "ready"
    counters.mkdir()
    command = [
        sys.executable,
        "-m",
        "foveate.cli.serve.child",
        str(counters),
        "stand_in",
        str(ready),
    ]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *command], env=environ, start_new_session=True
    )
    wait_for(ready.exists)
    server, engine = map(int, ready.read_text().split())
    parent.kill()
    parent.wait()
    wait_for(lambda: not any(map(running, (server, engine))))
    assert not counters.exists()


def test_what_a_killed_server_leaves_behind_is_ended(tmp_path: Path) -> None:
    (tmp_path / "stand_in.py").write_text(ENGINE.format(deaf=True))
    ready = tmp_path / "ready"
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def kill() -> None:
        wait_for(ready.exists)
        os.kill(int(ready.read_text().split()[0]), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    assert run([sys.executable, "-m", "stand_in", str(ready)], environ) == 128 + signal.SIGKILL
    killer.join()
    assert not running(int(ready.read_text().split()[1]))


def wait_for(what: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def running(pid: int) -> bool:
    """Whether a process runs; one that nobody has reaped does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_server_that_a_signal_ends_returns_what_a_shell_would() -> None:
    command = [sys.executable, "-S", "-c", "import os; os.kill(os.getpid(), 9)"]
    assert run(command, os.environ) == 128 + signal.SIGKILL


# ---------------------------------------------------------------- the profile beside the model


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's directory with a profile beside it."""
    folder = tmp_path_factory.mktemp("my model")
    (folder / PLACE).parent.mkdir()
    shutil.copy(PROFILES / "recommended.safetensors", folder / PLACE)
    return folder


@pytest.mark.parametrize(
    ("given", "share"),
    [
        ((), "20%"),
        (("--policy", "recommended"), "20%"),
        (("--policy", "recommended:budget=10%"), "10%"),
        (("--policy", "snapkv:budget=30%", "--policies", "recommended:budget=5%"), "5%"),
    ],
)
def test_recommended_takes_the_profile_that_lies_beside_the_model(
    foveate: Foveate, profiled: Path, given: tuple[str, ...], share: str
) -> None:
    result = foveate("serve", str(profiled), *given, "--show")
    assert result.exit_code == 0, result.stderr
    ours = config_of(shlex.split(result.stdout))["foveate"]
    (spec,) = ours.get("policies", [ours["policy"]])
    policy = policy_of(spec)
    assert str(policy.budget.amount) == share
    assert policy.score.profile == policy.budget.profile == str(profiled / PLACE)


def test_counts_by_layer_get_the_models_own_profile(foveate: Foveate, profiled: Path) -> None:
    line = foveate("serve", str(profiled), "--policy", "recommended:heads=by_layer", "--show")
    policy = policy_of(config_of(shlex.split(line.stdout))["foveate"]["policy"])
    assert isinstance(policy.budget, LayerLevels)
    assert str(policy.budget.amount) == "20%"
    assert policy.budget.profile == str(profiled / PLACE)


def test_another_profile_or_policy_is_served_as_it_is_given(
    foveate: Foveate, profiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = f"recommended:budget=10%,heads=by_profile,profile={PROFILES}/recommended.safetensors"
    line = foveate("serve", str(profiled), "--policy", spec, "--show").stdout
    assert config_of(shlex.split(line)) == {"foveate": {"policy": spec}}
    monkeypatch.setenv(VARIABLE, POLICY)
    assert "--additional-config" not in foveate("serve", str(profiled), "--show").stdout


def test_without_a_profile_the_refusal_names_what_makes_one_and_what_needs_none(
    foveate: Foveate, tmp_path: Path
) -> None:
    message = refused(foveate("serve", str(tmp_path)))
    made = f"foveate calibrate recommended --model {tmp_path} --out {tmp_path / PLACE}"
    assert made in message
    assert "snapkv:budget=20%" in message
    message = refused(foveate("serve", str(tmp_path), "--policy", "recommended:budget=20%"))
    assert "heads=by_profile" in message
    assert "snapkv:budget=20%" in message
