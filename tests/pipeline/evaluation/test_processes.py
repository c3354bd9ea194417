"""Processes of ``ontrack evaluate``: none outlives the command, however that ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.evaluation.runs import write_tools, write_workplace

pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads Linux's /proc")

PATIENCE_S = 60.0


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S:g} s for {what}"
        time.sleep(0.05)


def state_and_parent(pid: int) -> tuple[str, int]:
    """As /proc has it; X, which no process shows, where there is none of that id."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0
    return after_name[0], int(after_name[1])


def is_alive(pid: int) -> bool:
    # One that ended is a zombie for as long as nobody has asked for it.
    return state_and_parent(pid)[0] not in "XZ"


def children(pid: int) -> list[int]:
    everybody = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [each for each in everybody if state_and_parent(each)[1] == pid and is_alive(each)]


def is_at_work(pid: int) -> bool:
    """Whether a member of the pool has begun: it has loaded what jobs need."""
    try:
        return "numpy" in Path(f"/proc/{pid}/maps").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_command_that_is_ended_leaves_no_process_behind(
    how: signal.Signals, tmp_path: Path
) -> None:
    corpus, tools = write_workplace(tmp_path, good=6, bad=3), write_tools(tmp_path)
    program = "from ontrack.pipeline.cli import main; main()"
    arguments = ["evaluate", "faults", str(corpus), "--tools", str(tools), "--processes", "2"]
    environment = os.environ | {"ONTRACK_ENCODER": "hashing", "ONTRACK_KERNEL": "numpy"}
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as command:
        began: list[int] = []
        try:
            until(
                lambda: (
                    sum(map(is_at_work, children(command.pid))) == 2 or not is_alive(command.pid)
                ),
                "two processes at work",
            )
            began = children(command.pid)
            assert len(began) >= 2
            assert command.poll() is None
            command.send_signal(how)
            assert command.wait(PATIENCE_S) != 0
            until(lambda: not any(map(is_alive, began)), "the processes to end")
        finally:
            for pid in (command.pid, *began):
                if is_alive(pid):
                    os.kill(pid, signal.SIGKILL)
