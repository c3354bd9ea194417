"""What can be done to a running fleet: the disturbances of the fault campaign."""

from __future__ import annotations

import asyncio
import random
import resource
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from ontrack.pipeline.settings import Settings
from tests.broker import ROOT, TEST_SETTINGS, LocalBroker
from tests.pipeline.fleet import WorkerProcess
from tests.simulation import clock

HOUR_S = 3600.0
PARTITIONS = 6  # Faust gives a third worker of 4 partitions none: two may keep 4 / 3, rounded up
READY_S_MAX = 180.0  # on a machine that has other work, too
PAUSE_S = 12.0  # the session time-out is 10 s
NO_SPACE = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, -1))\n"


@dataclass(frozen=True)
class Size:
    """How much is streamed, how fast, and how often it is disturbed."""

    runs: int
    rate: float
    junk: int
    disturbances: int
    wait_s: float = 180.0


FULL = Size(runs=2000, rate=400.0, junk=10_000, disturbances=20)
SHORT = Size(runs=60, rate=90.0, junk=200, disturbances=3)


@dataclass
class Stage:
    """What a disturbance can get its hands on.

    Parameters
    ----------
    random
        Decides who is hit and when; the same seed, the same choices.
    done
        What was done, for the report.
    """

    broker: LocalBroker
    workers: list[WorkerProcess]
    random: random.Random
    directory: Path
    done: list[str] = field(default_factory=list)

    def _one(self) -> WorkerProcess:
        return self.random.choice([worker for worker in self.workers if worker.process is not None])

    async def kill_a_worker(self) -> None:
        """At work mostly, but also while it recovers."""
        worker = self._one()
        await asyncio.to_thread(worker.kill)
        await asyncio.sleep(self.random.uniform(0.0, 1.0))
        await asyncio.to_thread(worker.start)
        if self.random.random() < 0.7:
            await asyncio.to_thread(worker.wait_ready, READY_S_MAX)
        self.done.append(f"kill -9 {worker.name}")

    async def stop_a_worker(self) -> None:
        worker = self._one()
        await asyncio.to_thread(worker.stop)
        await asyncio.to_thread(worker.start)
        self.done.append(f"stop {worker.name}")

    async def pause_a_worker(self) -> None:
        """Longer than its session: the others take over, and it comes back not knowing."""
        worker = self._one()
        process = worker.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(PAUSE_S)
        process.send_signal(signal.SIGCONT)
        self.done.append(f"pause {worker.name} for {PAUSE_S:.0f} s")

    async def restart_the_broker(self) -> None:
        await asyncio.to_thread(self.broker.stop)
        await asyncio.to_thread(self.broker.start, TEST_SETTINGS)
        self.done.append("broker stopped and started")

    async def kill_the_broker(self) -> None:
        await asyncio.to_thread(self.broker.kill)
        await asyncio.to_thread(self.broker.start, TEST_SETTINGS)
        self.done.append("broker killed")

    async def add_and_remove_a_worker(self) -> None:
        """A third worker joins under load, and leaves without a word."""
        third = await self._add("w2")
        await asyncio.sleep(self.random.uniform(1.0, 3.0))
        await asyncio.to_thread(third.kill)
        self.done.append("a third worker joined and was killed")

    async def lose_one_of_three(self) -> None:
        """Three workers; one is killed for good, the others take its runs, a fourth comes."""
        await self._add("w2")
        lost = self.random.choice(self.workers[:2])
        await asyncio.to_thread(lost.kill)
        await asyncio.sleep(PAUSE_S)  # noticed by its session
        await self._add("w3")
        self.done.append(f"w2 joined, {lost.name} killed for good, w3 joined")

    async def _add(self, name: str) -> WorkerProcess:
        last = self.workers[-1]
        worker = WorkerProcess(
            last.settings, last.directory, name, more=last.more, runtime=last.runtime
        )
        self.workers.append(worker)
        await asyncio.to_thread(worker.start)
        await asyncio.to_thread(worker.wait_ready, READY_S_MAX)
        return worker

    async def fill_a_workers_disk(self) -> None:
        """Every write to a file fails: data directory and log; then it is killed and comes back so.

        A limit on the size of its files stands in for a full disk: ``write`` fails the same way,
        and neither a disk of its own nor root is needed for it.
        """
        worker = self._one()
        assert worker.process is not None
        _limit_files(worker.process.pid, 0)
        await asyncio.sleep(3.0)
        await asyncio.to_thread(worker.kill)
        usual, worker.prelude = worker.prelude, NO_SPACE + worker.prelude
        await asyncio.to_thread(worker.start)
        await asyncio.to_thread(worker.wait_ready, READY_S_MAX)
        await asyncio.sleep(3.0)
        await asyncio.to_thread(worker.kill)
        worker.prelude = usual
        await asyncio.to_thread(worker.start)
        self.done.append(f"full disk of {worker.name}, killed, started on the full disk")

    async def fill_the_brokers_disk(self) -> None:
        """Events, outputs and checkpoints cannot be written: there, too, by a limit on file sizes.

        The checkpoints' topic is what a changelog is elsewhere. A broker whose only log directory
        fails ends itself; it is started again when there is room.
        """
        pid = self.broker.pid()
        _limit_files(pid, 65_536)
        deadline = time.monotonic() + 20.0
        while _alive(pid) and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
        ended = not _alive(pid)
        if not ended:
            await asyncio.to_thread(self.broker.kill)
        await asyncio.to_thread(self.broker.start, TEST_SETTINGS)
        self.done.append(f"full disk of the broker, which {'ended itself' if ended else 'went on'}")

    async def jump_the_clocks(self) -> None:
        """Each worker's wall clock leaps, ahead or back, by hours or by a year; then comes home."""
        worker = self._one()
        by = self.random.choice((8 * HOUR_S, -8 * HOUR_S, 9000 * HOUR_S, -9000 * HOUR_S, 90.0))
        clock.jump(self.clock_of(worker), by)
        await asyncio.sleep(3.0)  # longer than the workers' look at the clock, which is 1 s here
        if self.random.random() < 0.5:
            clock.jump(self.clock_of(worker), 0.0)
        self.done.append(f"clock of {worker.name} by {by:+.0f} s")

    async def everything_in_turn(self) -> None:
        """All that leaves the fleet as it was, in an order that the seed chooses."""
        turns = [
            Stage.kill_a_worker,
            Stage.pause_a_worker,
            Stage.fill_a_workers_disk,
            Stage.fill_the_brokers_disk,
            Stage.jump_the_clocks,
            Stage.restart_the_broker,
            Stage.jump_the_clocks,
            Stage.kill_the_broker,
            Stage.stop_a_worker,
        ]
        self.random.shuffle(turns)
        for turn in turns:
            await turn(self)
            await asyncio.sleep(self.random.uniform(0.5, 2.0))

    def clock_of(self, worker: WorkerProcess) -> Path:
        return self.directory / f"{worker.name}.clock"

    def give_jumping_clocks(self) -> None:
        for worker in self.workers:
            worker.prelude = clock.prelude(ROOT, self.clock_of(worker))


def _limit_files(pid: int, size: int) -> None:
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


Disturbance = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True)
class Scenario:
    """A disturbance and how often it happens.

    Parameters
    ----------
    often
        As often as the size says; otherwise once.
    prepare
        Called before any worker starts.
    span_s
        The stream takes at least this long for each time, so that events come while it happens.
    """

    disturb: Disturbance | None
    often: bool = False
    prepare: Callable[[Stage], None] | None = None
    span_s: float = 0.0


SCENARIOS: dict[str, Scenario] = {
    "malformed messages alone": Scenario(None),
    "kill -9 of workers": Scenario(Stage.kill_a_worker, often=True, span_s=8.0),
    "workers stopped": Scenario(Stage.stop_a_worker, often=True, span_s=4.0),
    "a worker comes and goes": Scenario(Stage.add_and_remove_a_worker),
    "one of three workers lost, one added": Scenario(Stage.lose_one_of_three),
    "worker paused past its session": Scenario(Stage.pause_a_worker),
    "worker's disk full": Scenario(Stage.fill_a_workers_disk),
    "broker's disk full": Scenario(Stage.fill_the_brokers_disk),
    "clock jumps": Scenario(Stage.jump_the_clocks, often=True, prepare=Stage.give_jumping_clocks),
    "broker stopped and started": Scenario(Stage.restart_the_broker),
    "broker killed": Scenario(Stage.kill_the_broker),
    "everything in turn": Scenario(
        Stage.everything_in_turn, prepare=Stage.give_jumping_clocks, span_s=70.0
    ),
}


def make_workers(settings: Settings, directory: Path, runtime: str) -> list[WorkerProcess]:
    """Two workers with frequent checkpoints, so that states move by them and by the log."""
    more = {"ONTRACK_CHECKPOINT_EVENTS": "300"}
    return [
        WorkerProcess(settings, directory, name=f"w{number}", more=more, runtime=runtime)
        for number in range(2)
    ]
