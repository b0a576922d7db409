"""The manifest of docs/howto/kubernetes.md can be read, and its parts fit each other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from foveate.cli.app import app
from foveate.vllm.metrics import COUNTERS, FAILED, LABELS

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "kubernetes.md").read_text()
(MANIFEST,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
DEPLOYMENT, SERVICE = yaml.safe_load_all(MANIFEST)
POD = DEPLOYMENT["spec"]["template"]["spec"]
(SERVER,) = POD["containers"]


def option(name: str) -> Any:
    (value,) = (word.partition("=")[2] for word in SERVER["args"] if word.startswith(f"{name}="))
    return value


def test_the_service_finds_the_pods() -> None:
    assert (DEPLOYMENT["kind"], SERVICE["kind"]) == ("Deployment", "Service")
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"] == SERVICE["spec"]["selector"] == labels
    (port,) = SERVICE["spec"]["ports"]
    assert port["targetPort"] == SERVER["ports"][0]["name"]


@pytest.mark.parametrize("probe", ["startupProbe", "readinessProbe", "livenessProbe"])
def test_probes_ask_where_the_server_listens(probe: str) -> None:
    (port,) = SERVER["ports"]
    assert SERVER[probe]["httpGet"] == {"path": "/health", "port": port["name"]}
    assert option("--port") == str(port["containerPort"])
    annotations = DEPLOYMENT["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == option("--port")


def test_a_pod_has_time_to_drain() -> None:
    wait, seconds = SERVER["lifecycle"]["preStop"]["exec"]["command"]
    assert wait == "sleep"
    drained = int(seconds) + int(option("--shutdown-timeout"))
    assert drained < POD["terminationGracePeriodSeconds"]


def test_mounted_volumes_are_there() -> None:
    mounted = [one["name"] for one in SERVER["volumeMounts"]]
    assert mounted == [one["name"] for one in POD["volumes"]]


def test_foveate_serve_takes_the_command() -> None:
    program, name = SERVER["command"]
    assert program == "foveate"
    result = CliRunner().invoke(app, [name, *SERVER["args"], "--show"])
    assert result.exit_code == 0, result.stderr
    assert '{"foveate": {"policy": "mixkv:budget=20%"}}' in result.stdout


def test_queries_are_of_counters_and_labels_that_there_are() -> None:
    named = set(re.findall(r"foveate:\w+", PAGE))
    assert f"{FAILED}_total" in named <= {f"{name}_total" for name in COUNTERS}
    (by,) = re.findall(r"sum by \((.*?)\)", PAGE)
    assert set(by.split(", ")) <= {*LABELS, "reason"}
