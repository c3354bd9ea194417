"""``ontrack dashboard``: what it refuses before it serves anything."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ontrack.pipeline.cli import cli
from ontrack.topics.errors import InvalidSettings

ELSEWHERE = ["dashboard", "--demo", "--encoder", "hashing", "--port", "0", "--host", "0.0.0.0"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


@pytest.mark.parametrize(
    "arguments",
    [("--demo", "--serve", "http://x"), ("--demo", "--broker", "x:1")],
)
def test_one_source_is_named_at_most(arguments: tuple[str, ...]) -> None:
    result = run("dashboard", *arguments)
    assert result.exit_code == 2
    assert "exclude each other" in result.output


@pytest.mark.parametrize(("flag", "value"), [("--json", None), ("--port", "0")])
def test_the_demo_prints_or_shows(flag: str, value: str | None) -> None:
    more = [flag] if value is None else [flag, value]
    result = run("demo", *(["--dashboard"] if flag == "--json" else []), *more)
    assert result.exit_code == 2
    assert "--dashboard" in result.output


def test_what_is_no_address_is_told() -> None:
    result = run("dashboard", "--serve", "127.0.0.1:8100")
    assert isinstance(result.exception, InvalidSettings)
    assert "http://HOST:PORT" in str(result.exception)


def test_beyond_this_machine_it_asks_for_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nicegui")
    monkeypatch.delenv("ONTRACK_WEB_TOKEN", raising=False)
    result = run(*ELSEWHERE)
    assert isinstance(result.exception, InvalidSettings)
    assert "ONTRACK_WEB_TOKEN" in str(result.exception)


def test_without_its_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> Any:
        return None if name == "nicegui" else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    result = run("dashboard", "--demo")
    assert isinstance(result.exception, InvalidSettings)
    assert "pip install 'ontrack[dashboard]'" in str(result.exception)
