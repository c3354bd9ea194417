"""A bench that is told to end takes away what it set up."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from ontrack.pipeline.bench.runner import run

_PROGRAM = """
import asyncio
from ontrack.pipeline.bench.runner import run

async def work():
    try:
        print("begun", flush=True)
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.01)
        print("taken away", flush=True)

run(work())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_bench_that_is_told_to_end_takes_away_what_it_set_up(number: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        told, _ = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert told == "taken away\n"
    assert process.returncode != 0
    if number == signal.SIGTERM:
        assert process.returncode == 128 + number


def test_a_bench_that_ends_by_itself_gives_its_result() -> None:
    async def work() -> int:
        return 7

    assert run(work()) == 7
