"""The project's own files agree with each other: packaging, pins, compose file, images, make."""

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from ontrack.pipeline.kafka.shell import STOP_S_MAX
from ontrack.pipeline.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
LAYERS = ("solver", "operators", "topics", "pipeline")


def project_files() -> list[Path]:
    """Files that are in git, or would be with the next ``git add``."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: nothing says which files are the project's")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in listed.split("\0") if name]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def texts() -> dict[str, str]:
    """The project's text files by name."""
    found = {}
    for path in project_files():
        raw = path.read_bytes()
        if b"\0" not in raw[:8192]:
            found[str(path.relative_to(ROOT))] = raw.decode("utf-8", errors="replace")
    return found


# ------------------------------------------------------------------ packaging


def test_the_packages_listed_are_the_packages_in_the_tree() -> None:
    in_tree = {
        ".".join(("ontrack", *path.parent.relative_to(ROOT).parts))
        for layer in LAYERS
        for path in (ROOT / layer).rglob("*.py")
    }
    listed = PROJECT["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted(in_tree)


def test_every_package_has_an_init_file() -> None:
    folders = {path.parent for layer in LAYERS for path in (ROOT / layer).rglob("*.py")}
    assert [str(path) for path in sorted(folders) if not (path / "__init__.py").exists()] == []


def test_the_wheel_holds_every_file_of_the_packages(tmp_path: Path) -> None:
    # Built from a copy, so that the checkout gets no build folder.
    source = tmp_path / "source"
    files = [path.relative_to(ROOT) for path in project_files()]
    for name in files:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir"]
    done = subprocess.run(
        [*command, str(tmp_path / "dist"), str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == {f"ontrack/{name}" for name in files if name.parts[0] in LAYERS}


def test_type_checkers_find_each_layer_below_one_name() -> None:
    links = {link.name: os.readlink(link) for link in (ROOT / ".typing" / "ontrack").iterdir()}
    assert links == {layer: f"../../{layer}" for layer in LAYERS}
    assert [layer for layer in LAYERS if not (ROOT / layer / "py.typed").exists()] == []


# ------------------------------------------------------------------ dependencies


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def names_of(requirements: list[str]) -> list[str]:
    """Distribution names: ``"click>=8.1,<8.4"`` is ``"click"``."""
    return [re.split(r"[^\w.-]", item, maxsplit=1)[0] for item in requirements]


def required() -> list[str]:
    """Names of everything that pyproject.toml asks for."""
    extras = PROJECT["project"]["optional-dependencies"].values()
    groups = [PROJECT["build-system"]["requires"], PROJECT["project"]["dependencies"], *extras]
    return [name for group in groups for name in names_of(group)]


def test_constraints_are_exact_versions_and_nothing_else() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [line for line in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    names = [canonical(line.split("==")[0]) for line in pins]
    assert len(names) == len(set(names))


def test_every_dependency_has_a_pin() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonical(line.split("==")[0]) for line in lines if not line.startswith("#")}
    assert [name for name in required() if canonical(name) not in pinned] == []


def imported() -> set[str]:
    """Top-level modules that the packages import, their own and Python's apart."""
    names: set[str] = set()
    for path in (path for layer in LAYERS for path in (ROOT / layer).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - {"ontrack"}


def test_everything_imported_is_a_declared_dependency() -> None:
    # POT (the bench extra) is for comparisons; what tests and checks need does not count.
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = PROJECT["project"]["dependencies"] + extras["bench"] + extras["plots"]
    wanted += extras["otel"] + extras["alerts"] + extras["dashboard"]
    declared = {canonical(name) for name in names_of(wanted)}
    declared.add("pydantic-core")  # pydantic asks for one exact version: a pin of ours could clash
    owners = packages_distributions()
    undeclared = {
        module
        for module in imported()
        if not {canonical(owner) for owner in owners.get(module, ())} & declared
    }
    assert undeclared == set()


def test_every_dependency_has_its_reason_written_down() -> None:
    text = (ROOT / "docs" / "decisions" / "0002-dependencies.md").read_text().lower()
    assert [name for name in required() if name.lower() not in text] == []


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


@pytest.mark.parametrize(
    "target", ["setup", "demo", "test", "check", "bench", "kafka", "kafka-stop", "clean"]
)
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
