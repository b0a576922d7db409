"""The files of examples/serving can be read, and name what there is: counters, options, files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from foveate.cli.app import app
from foveate.vllm.metrics import COUNTERS

FOLDER = Path(__file__).parents[2] / "examples" / "serving"
DASHBOARD = json.loads((FOLDER / "grafana" / "dashboard.json").read_text())
ASKED = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def service(name: str) -> Any:
    return read("compose.yaml")["services"][name]


def test_the_dashboard_asks_for_every_counter_and_for_none_that_is_not_there() -> None:
    asked = {name for text in ASKED for name in re.findall(r"foveate:\w+", text)}
    assert asked == {f"{name}_total" for name in COUNTERS}


def test_the_dashboards_questions_are_about_the_chosen_model_and_close_what_they_open() -> None:
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["model"]
    for text in ASKED:
        named = re.findall(r"(?:foveate|vllm):\w+", text)
        assert text.count('{model_name=~"$model"}') == len(named) > 0
        assert text.count("(") == text.count(")")


def test_panels_stand_side_by_side_and_have_names_of_their_own() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    for name in ("id", "title", "description"):
        assert len({panel[name] for panel in DASHBOARD["panels"]}) == len(places)


def test_the_dashboard_reads_from_the_prometheus_that_grafana_is_told_of() -> None:
    (source,) = read("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    uids = {
        target["datasource"]["uid"] for p in DASHBOARD["panels"] for target in (p, *p["targets"])
    }
    assert uids == {source["uid"]}
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in read("compose.yaml")["services"]


def test_prometheus_asks_the_server_as_often_as_grafana_believes() -> None:
    config = read("prometheus.yml")
    (job,) = config["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["server:8000"]}]
    assert "--port=8000" in service("server")["command"]
    (source,) = read("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert source["jsonData"]["timeInterval"] == config["global"]["scrape_interval"]


def test_what_compose_mounts_and_copies_is_there() -> None:
    mounted = [one for name in ("prometheus", "grafana") for one in service(name)["volumes"]]
    files = [one.split(":")[0] for one in mounted if one.startswith("./")]
    assert len(files) == 3
    build = service("server")["build"]
    copied = re.findall(r"^COPY (.+) \S+$", build["dockerfile_inline"], re.MULTILINE)
    files += [f"{build['context']}/{name}" for line in copied for name in line.split()]
    for name in files:
        assert (FOLDER / name).exists(), name


def test_grafana_finds_the_dashboard_where_it_is_mounted() -> None:
    (provider,) = read("grafana/provisioning/dashboards/foveate.yaml")["providers"]
    places = [one.split(":")[1] for one in service("grafana")["volumes"]]
    assert f"{provider['options']['path']}/dashboard.json" in places


def test_foveate_serve_takes_the_servers_command() -> None:
    command = [re.sub(r"\$\{\w+:-(.*)\}", r"\1", word) for word in service("server")["command"]]
    program, name = service("server")["entrypoint"]
    assert program == "foveate"
    result = CliRunner().invoke(app, [name, *command, "--show"])
    assert result.exit_code == 0, result.stderr
    assert '{"foveate": {"policy": "mixkv:budget=20%"}}' in result.stdout
