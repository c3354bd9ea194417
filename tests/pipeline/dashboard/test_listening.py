"""How tests start a process: none is left behind that did not say where it listens."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.serving import served
from tests.pipeline.serving.served import Listening


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Processes that were started."""
    found: list[subprocess.Popen[bytes]] = []
    whole = subprocess.Popen

    def kept(*arguments: Any, **more: Any) -> subprocess.Popen[bytes]:
        found.append(whole(*arguments, **more))
        return found[-1]

    served.compile_kernel()
    monkeypatch.setattr(served.subprocess, "Popen", kept)
    return found


def test_a_process_that_takes_too_long_to_start_is_ended(
    tmp_path: Path, begun: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "START_S_MAX", 0.2)
    with pytest.raises(AssertionError, match="did not start"):
        Listening(tmp_path, "serve", "serve", "--port", "0")
    (process,) = begun
    assert process.returncode is not None
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_a_process_that_ends_by_itself_is_told_with_its_log(
    tmp_path: Path, begun: list[subprocess.Popen[bytes]]
) -> None:
    with pytest.raises(AssertionError, match="No such option: --no-such-option"):
        Listening(tmp_path, "serve", "serve", "--no-such-option")
    assert begun[0].returncode not in (None, 0)


def test_a_port_that_is_taken_is_one_message_that_names_the_remedy(tmp_path: Path) -> None:
    program = "from ontrack.pipeline.cli import main; main()"
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-c", program, "dashboard", "--demo", "--port", str(port)],
            cwd=tmp_path,
            env=os.environ | {"ONTRACK_ENCODER": "hashing"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"ontrack: cannot listen at 127.0.0.1:{port} (Address already in use)")
    assert "--port names another port" in line
