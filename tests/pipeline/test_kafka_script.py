"""scripts/kafka where things are missing or in the way."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker import MISSING, SCRIPT


def kafka(
    directory: Path, *arguments: str, path: str | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {"HOME": str(directory), "PATH": os.environ["PATH"] if path is None else path}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments, f"--dir={directory}"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def fake_java(directory: Path, version: str) -> str:
    """A folder for PATH with a java that only tells a version."""
    folder = directory / "bin"
    folder.mkdir()
    java = folder / "java"
    java.write_text(f"#!{shutil.which('sh')}\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return str(folder)


def test_without_java_it_says_what_to_install(tmp_path: Path) -> None:
    done = kafka(tmp_path, "start", "--port=0", path="")
    assert done.returncode == MISSING
    assert "no java on PATH" in done.stderr
    assert "apt-get install openjdk-17-jre-headless maven" in done.stderr
    assert "docker compose up kafka" in done.stderr


def test_a_java_that_is_too_old_is_named(tmp_path: Path) -> None:
    done = kafka(tmp_path, "start", "--port=0", path=fake_java(tmp_path, "11.0.22"))
    assert done.returncode == MISSING
    assert "is Java 11; Kafka 4.4.0 needs Java 17 or newer" in done.stderr


def test_without_maven_it_says_what_maven_is_for(tmp_path: Path) -> None:
    done = kafka(tmp_path, "start", "--port=0", path=fake_java(tmp_path, "21.0.1"))
    assert done.returncode == MISSING
    assert "no mvn on PATH: Maven fetches Kafka's jars, once" in done.stderr


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = kafka(tmp_path, "start", f"--port={port}")
    assert done.returncode == 1
    assert f"port {port} is already in use by another program" in done.stderr


def test_stop_without_a_broker_is_fine_and_status_is_not(tmp_path: Path) -> None:
    assert kafka(tmp_path, "stop").returncode == 0
    done = kafka(tmp_path, "status")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "not running" in done.stderr


def test_a_process_that_took_over_the_recorded_id_is_left_alone(tmp_path: Path) -> None:
    record = {"pid": os.getpid(), "port": 1, "controller_port": 2}
    (tmp_path / "broker.json").write_text(json.dumps(record))
    assert kafka(tmp_path, "status").returncode == 1
    assert kafka(tmp_path, "stop").returncode == 0  # and this test is still here to say so


def test_wipe_deletes_nothing_that_the_script_did_not_write(tmp_path: Path) -> None:
    kept = tmp_path / "data" / "kept.txt"
    kept.parent.mkdir()
    kept.write_text("mine")
    done = kafka(tmp_path, "wipe")
    assert done.returncode == 0
    assert "nothing of ours" in done.stderr
    assert kept.read_text() == "mine"


@pytest.mark.parametrize("setting", ["log.dirs", ""])
def test_a_setting_without_a_value_is_bad_usage(tmp_path: Path, setting: str) -> None:
    done = kafka(tmp_path, "start", f"--set={setting}")
    assert done.returncode == 2
    assert "expected NAME=VALUE" in done.stderr
