"""The blocking run: threads, forks, exits, callbacks."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ontrack.pipeline.sdk import ForkedRun, SyncMonitor
from ontrack.pipeline.sdk.background import background
from ontrack.pipeline.sdk.client import Blocked, Monitor
from ontrack.topics.errors import InvalidSettings
from ontrack.topics.verdicts import Verdict
from tests.pipeline.sdk.recorded import ORDER, SETTINGS, Recorded
from tests.pipeline.serving.served import served


def watched(monitor: Recorded, run_id: str = "r", **more: Any) -> SyncMonitor:
    return SyncMonitor(embedded=monitor, run_id=run_id, settings=SETTINGS, **more)


def test_a_run_begins_is_checked_step_by_step_and_ends() -> None:
    monitor = Recorded()
    with watched(monitor, task_id="t", agent="clerk") as run:
        assert (run.run_id, run.next_seq) == ("r", 0)
        with pytest.raises(Blocked):
            run.check("pay", ORDER, raise_on_block=True)
        (verdict,) = run.step("find", result=ORDER, cost_usd=0.5)
        assert isinstance(verdict, Verdict)
        answer = run.check("pay", ORDER)
        assert (run.redeem(answer), run.redeem(answer)) == (None, "used")
        assert run.end("failure", reward=0.0)
        assert run.end("success") == ()
    assert (monitor.end.outcome, monitor.end.reward) == ("failure", 0.0)
    assert {event.task_id for event in monitor.fed} == {"t"}


def test_an_exception_ends_the_run_and_passes_through() -> None:
    monitor = Recorded()
    with pytest.raises(ZeroDivisionError), watched(monitor):
        raise ZeroDivisionError
    assert (monitor.end.outcome, monitor.end.reason) == ("failure", "ZeroDivisionError")


def test_it_is_made_with_what_a_monitor_is_made_with() -> None:
    assert inspect.signature(SyncMonitor) == inspect.signature(Monitor)
    with pytest.raises(TypeError, match="shadow"):
        SyncMonitor(run_id="r", shadow=True)  # type: ignore[call-arg]
    run = watched(Recorded(), first_seq=3)
    assert run.next_seq == 3


def test_outside_of_its_block_a_run_says_so() -> None:
    run = watched(Recorded())
    with pytest.raises(RuntimeError, match="has not begun or is over"):
        run.step("find")
    with run:
        pass
    with pytest.raises(RuntimeError, match="has not begun or is over"):
        run.check("find")


def test_many_threads_report_to_one_run_and_no_number_is_given_twice() -> None:
    monitor, together = Recorded(), threading.Barrier(8)

    def work(name: str) -> None:
        together.wait()
        for number in range(12):
            run.check("find", {"by": name})
            run.step("find", {"by": name, "number": number})

    with watched(monitor) as run:
        threads = [threading.Thread(target=work, args=(str(name),)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [step.seq for step in monitor.steps] == list(range(96))
    for name in range(8):
        own = [step.args["number"] for step in monitor.steps if step.args["by"] == str(name)]
        assert own == list(range(12))


def test_several_runs_share_a_monitor_from_several_threads() -> None:
    monitor = Recorded()

    def work(name: str) -> None:
        with watched(monitor, name) as run:
            for _ in range(10):
                run.step("find", result=ORDER)

    threads = [threading.Thread(target=work, args=(f"r-{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cards = [output for output in monitor.said if output.type == "scorecard"]
    assert sorted((card.run_id, card.steps) for card in cards) == [(f"r-{n}", 10) for n in range(4)]


def test_a_callback_may_not_wait_for_the_monitor() -> None:
    problems: list[Exception] = []

    def answers(_output: Any) -> None:
        try:
            run.step("find")
        except RuntimeError as error:
            problems.append(error)

    with watched(Recorded(), on_output=answers) as run:
        run.step("find")
        run.monitor._on_output = None
    assert ["may not wait" in str(problem) for problem in problems] == [True]


def test_only_one_way_to_the_monitor_can_be_named() -> None:
    with pytest.raises(InvalidSettings, match="one of"):
        watched(Recorded(), serve_url="http://127.0.0.1:8100")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_told_and_can_begin_a_run_of_its_own() -> None:
    monitor = Recorded()
    with watched(monitor) as run:
        run.step("find")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with pytest.raises(ForkedRun, match="after the fork"):
                    run.step("find")
                with watched(Recorded(), "child", parent_run_id="r") as own:
                    code = 0 if len(own.step("find")) == 1 else 3
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        run.step("find")
    assert [step.seq for step in monitor.steps] == [0, 1]


def test_an_interrupted_wait_leaves_the_loop_running() -> None:
    import asyncio

    with pytest.raises(TimeoutError):
        background().wait(asyncio.sleep(60), timeout_s=0.01)
    assert background().wait(asyncio.sleep(0, "still there")) == "still there"


PROGRAM = """
import sys
from ontrack.pipeline.sdk import SyncMonitor, tool

@tool
def find(q):
    return "nothing"

run = SyncMonitor(run_id="left-open", serve_url=sys.argv[1])
run.__enter__()
find("x")
sys.exit(3)
"""


def test_a_program_that_ends_inside_its_run_ends_the_run(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, server.url], cwd=tmp_path, timeout=60, check=False
        )
        assert done.returncode == 3
        card = server.outputs()[-1]
    assert (card["type"], card["run_id"], card["steps"]) == ("scorecard", "left-open", 1)
    assert (card["outcome"], card["reason"]) == ("unknown", "the program ended inside the run")


def test_a_program_whose_monitor_is_gone_still_ends(tmp_path: Path) -> None:
    # Everything is taken until the server goes away; nothing then keeps the program.
    with served(tmp_path) as server:
        program = PROGRAM.replace(
            "sys.exit(3)", "import os, signal; os.kill(int(sys.argv[2]), signal.SIGKILL)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, server.url, str(server.process.pid)],
            cwd=tmp_path,
            timeout=60,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "run_end_not_sent" in done.stdout + done.stderr
