"""The daemon answers whether or not somebody reads what it prints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from ontrack.pipeline.serving.printing import Printing
from ontrack.topics.verdicts import Output, Verdict

PIPE_BYTES = 300_000  # more than a pipe holds


def _verdict(seq: int) -> Output:
    return Verdict.model_construct(type="verdict", id=f"r:{seq}", run_id="r", seq=seq)


def test_all_is_printed_in_its_order() -> None:
    seen: list[str] = []
    printing = Printing(lambda output: seen.append(output.id))
    for seq in range(50):
        printing.tell(_verdict(seq))
    assert printing.close()
    assert seen == [f"r:{seq}" for seq in range(50)]


def test_a_reader_that_stands_still_costs_outputs_and_nothing_waits() -> None:
    goes_on = threading.Event()
    printing = Printing(lambda _output: goes_on.wait() and None, waiting_max=5)
    for seq in range(20):
        printing.tell(_verdict(seq))
    assert printing.dropped >= 14
    assert not printing.close(0.05)
    goes_on.set()


def test_a_reader_that_has_gone_ends_the_printing_only() -> None:
    calls: list[str] = []

    def gone(output: Output) -> None:
        calls.append(output.id)
        raise BrokenPipeError

    printing = Printing(gone)
    for seq in range(3):
        printing.tell(_verdict(seq))
    assert printing.close()
    assert calls == ["r:0"]


@pytest.fixture
def unread(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A daemon into whose pipe nobody looks, and its address."""
    program = "from ontrack.pipeline.cli import main; main()"
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", program, "serve", "--port", "0", "--json"],
            env=os.environ | {"ONTRACK_ENCODER": "hashing"},
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=tmp_path,
        )
    text = ""
    while "http://" not in text and process.poll() is None:
        text = (tmp_path / "log").read_text()
    yield process, text.partition("ontrack serve: ")[2].partition(",")[0]
    process.kill()
    process.wait()


def _post(url: str, number: int) -> int:
    call = {"session_id": "s", "hook_event_name": "PreToolUse", "tool_name": "Bash"}
    body = json.dumps(call | {"tool_input": {"command": str(number)}, "tool_use_id": f"c{number}"})
    with urlopen(Request(url + "/v1/hooks/claude-code", body.encode()), timeout=10) as answer:
        return int(answer.status)


def test_hooks_are_answered_while_nobody_reads_and_after_the_reader_has_gone(
    unread: tuple[subprocess.Popen[bytes], str],
) -> None:
    process, url = unread
    assert {_post(url, number) for number in range(PIPE_BYTES // 500)} == {200}
    assert process.stdout is not None
    process.stdout.close()
    assert {_post(url, 10_000 + number) for number in range(5)} == {200}
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0


def test_it_stops_while_nobody_reads(unread: tuple[subprocess.Popen[bytes], str]) -> None:
    process, url = unread
    assert {_post(url, number) for number in range(PIPE_BYTES // 500)} == {200}
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0
