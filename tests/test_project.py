"""The project's own files agree with each other: compose file, images, make, what none may hold."""

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from ontrack.pipeline.kafka.shell import STOP_S_MAX
from ontrack.pipeline.settings import Settings
from tests.tree import LAYERS, PROJECT, ROOT, project_files

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def texts() -> dict[str, str]:
    """The project's text files by name."""
    found = {}
    for path in project_files():
        raw = path.read_bytes()
        if b"\0" not in raw[:8192]:
            found[str(path.relative_to(ROOT))] = raw.decode("utf-8", errors="replace")
    return found


# ------------------------------------------------------------------ what files may not hold


def test_no_file_names_a_package_registry() -> None:
    # A host is written as part of an address, or after an option that takes one.
    registry = re.compile(
        r"https?://[\w.-]*(?:pypi|pythonhosted|npmjs|maven|sonatype|crates|deb\.|proxy\.golang)"
        r"|--(?:extra-)?index-url[ =]|--find-links[ =]|<repositor(?:y|ies)>",
        re.IGNORECASE,
    )
    # The patterns above stand in this file as parts of expressions, which do not match themselves.
    found = {name: registry.findall(text) for name, text in texts().items()}
    assert {name: hits for name, hits in found.items() if hits} == {}


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    machine = re.compile(rf"(?<![\w./~-])/(?:work|root)/\w|{re.escape(str(ROOT))}(?=/)")
    found = {
        name: machine.findall(text)
        for name, text in texts().items()
        if not name.endswith(".jsonl")  # recorded runs name the paths of the agents' machines
    }
    assert {name: hits for name, hits in found.items() if hits} == {}


def test_scripts_can_be_run() -> None:
    scripts = [*(ROOT / "scripts").iterdir(), ROOT / ".ci" / "run"]
    assert [str(path) for path in scripts if not os.access(path, os.X_OK)] == []


# ------------------------------------------------------------------ compose file and image


def docker_lines() -> list[tuple[str, str]]:
    """Instructions of the Dockerfile, continued lines joined."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def test_the_compose_file_follows_the_compose_specification() -> None:
    schema = json.loads((ROOT / "tests" / "data" / "compose-spec.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    assert [error.message for error in validator.iter_errors(COMPOSE)] == []
    # The oracle works: a slip in a service's keys is found.
    wrong = {"services": {"kafka": {"image": "x", "heathcheck": {}}}}
    assert not validator.is_valid(wrong)


def test_services_wait_only_for_what_can_happen() -> None:
    services: dict[str, Any] = COMPOSE["services"]
    for name, service in services.items():
        for other, wait in service.get("depends_on", {}).items():
            assert other in services, name
            if wait["condition"] == "service_healthy":
                assert "healthcheck" in services[other], name
            if wait["condition"] == "service_completed_successfully":
                assert services[other]["restart"] == "no", name


def test_every_image_has_an_exact_version() -> None:
    images = [service["image"] for service in COMPOSE["services"].values()]
    images += [value.split()[0] for instruction, value in docker_lines() if instruction == "FROM"]
    assert [name for name in images if not re.search(r":v?\d+\.\d+\.\d+(-[\w-]+)?$", name)] == []


def test_the_compose_file_builds_the_version_of_the_project() -> None:
    built = {s["image"] for s in COMPOSE["services"].values() if "build" in s}
    assert built == {f"ontrack:{PROJECT['project']['version']}"}


def test_ports_are_published_on_the_loopback_interface_only() -> None:
    ports = [port for s in COMPOSE["services"].values() for port in s.get("ports", ())]
    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []
    published = [port.rsplit(":", 1)[0] for port in ports]
    assert sorted(published) == sorted(set(published))


def test_every_file_that_is_mounted_is_there() -> None:
    for name, service in COMPOSE["services"].items():
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            if not source.startswith("."):
                assert source in COMPOSE["volumes"], name
            elif "alerts" not in service.get("profiles", ()):  # what a user writes for himself
                assert (ROOT / source).exists(), name
        for config in service.get("configs", ()):
            assert config["source"] in COMPOSE["configs"], name


def test_prometheus_scrapes_the_workers_of_the_compose_file() -> None:
    scraped = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    jobs = {job["job_name"]: job for job in scraped["scrape_configs"]}
    workers = [name for name in COMPOSE["services"] if name.startswith("worker")]
    port = Settings.model_fields["web_port"].default
    (targets,) = jobs["ontrack-worker"]["static_configs"]
    assert targets["targets"] == [f"{name}:{port}" for name in workers]
    # The token is where Prometheus reads it, and the workers' own.
    (config,) = COMPOSE["services"]["prometheus"]["configs"]
    folder = config["target"].rpartition("/")[0]
    named = jobs["ontrack-worker"]["authorization"]["credentials_file"]
    assert config["target"] == f"{folder}/{named}"
    token = COMPOSE["configs"][config["source"]]["content"]
    mounted = dict(m.split(":")[:2] for m in COMPOSE["services"]["prometheus"]["volumes"])
    assert mounted["./deploy/prometheus/prometheus.yml"] == f"{folder}/prometheus.yml"
    assert [mounted[f"./deploy/prometheus/{n}"] for n in scraped["rule_files"]] == [
        f"{folder}/{name}" for name in scraped["rule_files"]
    ]
    for name in workers:
        service = COMPOSE["services"][name]
        assert service["environment"]["ONTRACK_WEB_TOKEN"] == token
        assert any(place.endswith(f":{port}") for place in service["ports"])
        assert service["environment"]["ONTRACK_WEB_ADVERTISED_URL"] == f"http://{name}:{port}"
    # Shares Prometheus' network, so that this is its own loopback interface.
    (target,) = jobs["ontrack-alerts"]["static_configs"]
    assert target["targets"] == ["127.0.0.1:9464"]
    assert "--metrics-port 9464" in COMPOSE["services"]["alerts"]["command"]
    assert COMPOSE["services"]["alerts"]["network_mode"] == "service:prometheus"


def test_workers_have_names_of_their_own_and_time_to_end() -> None:
    workers = [s for name, s in COMPOSE["services"].items() if name.startswith("worker")]
    assert len(workers) == 2
    assert len({s["environment"]["ONTRACK_INSTANCE"] for s in workers}) == 2
    for service in workers:
        assert int(service["stop_grace_period"].removesuffix("s")) > STOP_S_MAX


def test_what_goes_on_by_itself_is_started_again_and_looked_after() -> None:
    for name, service in COMPOSE["services"].items():
        assert service["restart"] in ("no", "unless-stopped"), name
        if service["restart"] == "unless-stopped" and name not in ("load", "alerts"):
            assert "healthcheck" in service, name


def test_the_image_copies_files_that_exist_and_does_not_run_as_root() -> None:
    instructions = docker_lines()
    copied = [
        name
        for key, value in instructions
        if key == "COPY" and not value.startswith("--from=")
        for name in value.split()[:-1]
    ]
    assert {"pyproject.toml", "constraints.txt", *LAYERS} <= set(copied)
    assert [name for name in copied if not (ROOT / name).exists()] == []
    kept = (ROOT / ".dockerignore").read_text().splitlines()
    assert [name for name in copied if f"!{name}" not in kept] == []
    (user,) = [value for key, value in instructions if key == "USER"]
    assert int(user) > 0  # Kubernetes can check a number, not a name


def test_the_image_installs_extras_of_the_project() -> None:
    text = (ROOT / "Dockerfile").read_text()
    (named,) = re.findall(r"\.whl\)\[([\w,]+)\]", text)
    assert set(named.split(",")) <= set(PROJECT["project"]["optional-dependencies"])


def test_every_variable_given_to_containers_is_a_setting() -> None:
    names = {key for s in COMPOSE["services"].values() for key in s.get("environment", {})}
    names |= set(re.findall(r"\b(ONTRACK_\w+)=", (ROOT / "Dockerfile").read_text()))
    ours = {name.removeprefix("ONTRACK_").lower() for name in names if name.startswith("ONTRACK_")}
    assert "broker" in ours
    assert ours <= set(Settings.model_fields)


@pytest.mark.parametrize("service", sorted(COMPOSE["services"]))
def test_settings_take_the_values_that_a_service_is_given(service: str) -> None:
    given = COMPOSE["services"][service].get("environment", {})
    Settings(
        **{
            name.removeprefix("ONTRACK_").lower(): value
            for name, value in given.items()
            if name.startswith("ONTRACK_")
        }
    )


def shell_of(command: str | list[str] | None) -> str:
    """A command as one line; of ``sh -c`` what it comes to, with a number for ``$(…)``."""
    if not isinstance(command, list):
        return command or ""
    if command[:2] != ["sh", "-c"]:
        return shlex.join(command)
    return re.sub(r"\$\$\(.*?\)", "1", command[2]).removeprefix("exec ")


def written_commands() -> list[str]:
    """Every ``ontrack …`` that compose file, image and Makefile run."""
    services = COMPOSE["services"].values()
    commands = [
        shell_of(s["command"]) for s in services if "ontrack " in shell_of(s.get("command"))
    ]
    commands += [shlex.join(ast.literal_eval(v)) for key, v in docker_lines() if key == "CMD"]
    commands += re.findall(r"^\t\$\(BIN\)/(ontrack .*)$", (ROOT / "Makefile").read_text(), re.M)
    return sorted(set(commands))


def test_the_commands_to_check_are_found() -> None:
    expected = {"ontrack topics create", "ontrack send --demo", "ontrack demo", "ontrack --help"}
    assert expected <= set(written_commands())
    assert any(c.startswith("ontrack simulate ") for c in written_commands())


@pytest.mark.parametrize("command", written_commands())
def test_a_command_that_is_written_down_is_a_real_one(command: str) -> None:
    # With --help at its end nothing runs, but unknown commands and options are still refused.
    program = "from ontrack.pipeline.cli import main; main()"
    arguments = [sys.executable, "-c", program, *shlex.split(command)[1:], "--help"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage: ontrack" in done.stdout


# ------------------------------------------------------------------ make and set-up


def promised_targets() -> list[str]:
    """Every ``make …`` that README and CONTRIBUTING name."""
    named: set[str] = set()
    for document in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / document).read_text()
        for words in re.findall(r"(?:^|`|\$ )make ((?:[a-z-]+ ?)+)", text, re.MULTILINE):
            named |= set(words.split())
    return sorted(named)


def test_the_targets_to_check_are_found() -> None:
    assert {"setup", "demo", "test", "check", "kafka", "kafka-stop"} <= set(promised_targets())


@pytest.mark.parametrize("target", promised_targets())
def test_make_knows_every_promised_target(target: str) -> None:
    done = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_set_up_says_what_to_install_where_no_python_fits(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "setup", tmp_path / "scripts" / "setup")
    done = subprocess.run(
        [str(tmp_path / "scripts" / "setup")],
        env={"PATH": os.environ["PATH"], "PYTHON": "no-such-python"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "no Python 3.11, 3.12 or 3.13 found (looked for: no-such-python)" in done.stderr
    assert "apt-get install python3" in done.stderr


@pytest.mark.parametrize("what", ["base", "dev"])
def test_a_setup_that_fails_says_so_and_leaves_no_stamp(tmp_path: Path, what: str) -> None:
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "setup", tmp_path / "scripts" / "setup")
    venv.create(tmp_path / ".venv", with_pip=False)
    command = ["bash", str(tmp_path / "scripts" / "setup"), what]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "ready" not in done.stderr
    assert not list((tmp_path / ".venv").glob(".installed*"))
