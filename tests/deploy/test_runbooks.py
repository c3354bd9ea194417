"""What the operators' pages tell to type can be typed, and what they point at is there."""

from __future__ import annotations

import re
import shlex

import pytest
from click.testing import CliRunner

from ontrack.pipeline.cli import cli
from ontrack.topics.catalog import catalogue
from tests.deploy.test_prometheus import anchors_of
from tests.deploy.tools import ROOT

PAGES = ("docs/operating.md", "docs/deploying.md")


def commands() -> list[str]:
    found: set[str] = set()
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for command in re.findall(r"`(ontrack [a-z][^`]*)`", text):
            found.add(" ".join(command.split()).split(" > ")[0])
    return sorted(found)


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_runbooks_is_a_real_one(command: str) -> None:
    words = shlex.split(command)[1:]
    # With --help nothing runs, but unknown commands and options are still refused.
    told = CliRunner().invoke(cli, [*words, "--help"])
    assert told.exit_code == 0, told.output
    assert "Usage: " in told.output


def test_the_commands_to_check_are_found() -> None:
    assert "ontrack doctor" in commands()
    assert any(command.startswith("ontrack shadow on --agent") for command in commands())
    assert CliRunner().invoke(cli, ["doctor", "--no-such-option", "--help"]).exit_code == 2


def test_the_keys_of_what_only_workers_read_are_those_of_the_catalogue() -> None:
    text = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| `snapshots`, `fleet-states` \| ([^|]+) \|", text, re.MULTILINE)
    topics = catalogue()
    assert row.split(", ") == ["run id", topics.fleet_states.key]
    assert topics.snapshots.key.startswith("run id")


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    folder = (ROOT / page).parent
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = (folder / name).resolve() if name else ROOT / page
        assert file.exists(), target
        if anchor:
            found = anchors_of(file.read_text(encoding="utf-8"))
            assert re.sub(r"-\d$", "", anchor) in found or anchor in found, target
