"""Programs that are not Python's, and the files of deploy/."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
KUBERNETES = ROOT / "deploy" / "kubernetes"
BOARD = ROOT / "deploy" / "grafana" / "dashboards" / "ontrack.json"


def tool(name: str) -> str:
    """Path of a program; skips where it is not installed, but fails in CI, where silence lies."""
    found = shutil.which(name)
    if found is None:
        reason = f"no {name} on PATH; Debian or Ubuntu: apt-get install prometheus"
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must run these tests. {reason}", pytrace=False)
        pytest.skip(reason)
    return found


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    """Panels of the board that show something."""
    board = json.loads(BOARD.read_text(encoding="utf-8"))
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str]]:
    """Title of the panel and expression, as Grafana would send it for all workers."""
    for panel in panels():
        for target in panel["targets"]:
            text = target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*")
            assert "$" not in text, f"{panel['title']}: a variable that nobody fills in"
            yield panel["title"], text


def metrics_in(expression: str) -> set[str]:
    """Names of metrics in an expression: what stands before a brace, or alone like a metric's."""
    bare = re.sub(r'"[^"]*"', '""', expression)
    bare = re.sub(r"\b(?:by|on|without|ignoring)\s*\([^)]*\)", "", bare)
    bare = re.sub(r"\{[^}]*\}", "{}", bare)
    named = set(re.findall(r"\b([a-zA-Z_]\w*)\{\}", bare))
    return named | set(re.findall(r"\b((?:ontrack|process|python)_\w+|up|ALERTS)\b", bare))
