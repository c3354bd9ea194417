"""Grafana's files: the board is whole, and what provisions it finds it."""

from __future__ import annotations

import json
from typing import Any

import yaml

from tests.deploy.tools import BOARD, ROOT, panels

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
PROVISIONING = ROOT / "deploy" / "grafana" / "provisioning"


def provisioned(kind: str) -> dict[str, Any]:
    (file,) = (PROVISIONING / kind).glob("*.yml")
    found = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert found.pop("apiVersion") == 1
    ((_, items),) = found.items()
    (item,) = items
    return dict(item)


def test_the_board_is_found_where_grafana_looks_for_it() -> None:
    mounts = dict(m.split(":")[:2] for m in COMPOSE["services"]["grafana"]["volumes"])
    assert mounts["./deploy/grafana/provisioning"] == "/etc/grafana/provisioning"
    folder = mounts["./deploy/grafana/dashboards"]
    assert provisioned("dashboards")["options"]["path"] == folder
    home = COMPOSE["services"]["grafana"]["environment"][
        "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"
    ]
    assert home == f"{folder}/{BOARD.name}"


def test_the_datasource_is_prometheus_and_every_panel_asks_it() -> None:
    source = provisioned("datasources")
    host, port = source["url"].removeprefix("http://").split(":")
    published = COMPOSE["services"][host]["ports"]
    assert source["type"] == "prometheus"
    assert any(place.endswith(f":{port}") for place in published)
    uids = {panel["datasource"]["uid"] for panel in panels()}
    uids |= {target["datasource"]["uid"] for panel in panels() for target in panel["targets"]}
    assert uids == {source["uid"]}


def test_panels_have_titles_and_places_of_their_own() -> None:
    board = json.loads(BOARD.read_text(encoding="utf-8"))
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        assert panel["title"]
        assert at["x"] + at["w"] <= 24
        covered = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not covered & cells, f"{panel['title']} lies on another panel"
        cells |= covered
    for panel in panels():
        assert panel["targets"], panel["title"]


def test_the_variable_of_the_board_is_the_one_that_its_queries_use() -> None:
    board = json.loads(BOARD.read_text(encoding="utf-8"))
    (variable,) = board["templating"]["list"]
    assert variable["name"] == "instance"
    assert 'up{job="ontrack-worker"}' in variable["query"]["query"]
    assert any("$instance" in t["expr"] for panel in panels() for t in panel["targets"])
