"""What ``bench pipeline`` sets up on a broker, and takes away again: topics, a worker."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp

from ontrack.pipeline.kafka.connection import start_admin, topics_of
from ontrack.pipeline.kafka.provision import create_topics
from ontrack.pipeline.settings import Settings
from ontrack.topics.errors import BrokerUnavailable

START_S_MAX = 90.0
STOP_S_MAX = 20.0
POLL_S = 0.1
LOG_CHARACTERS = 2000


def own_settings(settings: Settings, folder: Path) -> Settings:
    """Return settings under which nobody's topics, group, port or files are touched."""
    name = f"bench{uuid.uuid4().hex[:8]}"
    own = {"topic_prefix": f"{name}.", "group": name, "log_level": "warning"}
    return worker_settings(settings.model_copy(update=own), folder, "worker")


def worker_settings(settings: Settings, folder: Path, name: str) -> Settings:
    """Return settings of one more worker of the same group: a name, a port, files of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    return settings.model_copy(
        update={
            "instance": f"{settings.group}-{name}",
            "web_host": "127.0.0.1",
            "web_port": port,
            "web_advertised_url": f"http://127.0.0.1:{port}",
            "data_dir": str(folder / f"data-{name}"),
        }
    )


@asynccontextmanager
async def topics(settings: Settings, *more: str) -> AsyncIterator[None]:
    """Create the topics of these settings, and delete them at the end, whatever happens.

    Parameters
    ----------
    more
        Further topics that the caller makes; deleted as well.

    Raises
    ------
    BrokerUnavailable
        Kafka does not answer.
    """
    await create_topics(settings)
    try:
        yield
    finally:
        admin = await start_admin(settings)
        try:
            ours = {spec.name for spec in topics_of(settings)} | set(more)
            await admin.delete_topics(sorted(ours & set(await admin.list_topics())))
        finally:
            await admin.close()


@asynccontextmanager
async def worker(settings: Settings, folder: Path) -> AsyncIterator[WorkerProcess]:
    """Run an ``ontrack worker`` until the block ends; it is ready when the block begins."""
    process = WorkerProcess(settings, folder)
    await process.start()
    try:
        await process.until_ready()
        yield process
    finally:
        await process.stop()


class WorkerProcess:
    """One real ``ontrack worker``."""

    def __init__(self, settings: Settings, folder: Path, name: str = "worker") -> None:
        self.url = f"http://127.0.0.1:{settings.web_port}"
        self.headers = {}
        if settings.web_token is not None:
            self.headers = {"Authorization": f"Bearer {settings.web_token.get_secret_value()}"}
        self._settings = settings
        self._log = folder / f"{name}.log"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it with the settings of this process, but for those that are the bench's own."""
        own = {"topic_prefix", "group", "instance", "web_host", "web_port", "web_advertised_url"}
        own |= {"data_dir", "log_level", "broker", "runtime"}
        values = self._settings.model_dump(include=own)
        environment = os.environ | {f"ONTRACK_{k.upper()}": str(v) for k, v in values.items()}
        program = "from ontrack.pipeline.cli import main; main()"
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", program, "worker", env=environment, stdout=log, stderr=log
            )

    async def until_ready(self, wait_s: float = START_S_MAX) -> None:
        """Wait until ``/readyz`` says so, at most ``wait_s`` seconds.

        Raises
        ------
        BrokerUnavailable
            The worker ended, or is not ready after a long time; with the end of its log.
        """
        assert self._process is not None
        end = asyncio.get_running_loop().time() + wait_s
        async with aiohttp.ClientSession(headers=self.headers) as session:
            while self._process.returncode is None and asyncio.get_running_loop().time() < end:
                with suppress(aiohttp.ClientError, OSError):
                    async with session.get(f"{self.url}/readyz") as answer:
                        if answer.status == 200:
                            return
                await asyncio.sleep(POLL_S)
        raise BrokerUnavailable(
            f"the measured worker did not get ready; its log ends:\n{self.tail}"
        )

    async def owned(self) -> int:
        """Return how many partitions it has and has recovered; 0 while it does not answer."""
        with suppress(aiohttp.ClientError, OSError):
            async with (
                aiohttp.ClientSession(headers=self.headers) as session,
                session.get(f"{self.url}/readyz") as answer,
            ):
                told = await answer.json()
                return sum(told["partitions"].values())
        return 0

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process is not None and self._process.returncode is None

    @property
    def tail(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-LOG_CHARACTERS:]

    async def stop(self) -> None:
        """End it, at last by force."""
        if self._process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.returncode is not None:
                return
            with suppress(ProcessLookupError):
                self._process.send_signal(number)
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_S_MAX):
                    await self._process.wait()


def cpu_s(workers: Sequence[WorkerProcess]) -> float | None:
    """Return the processor time of all together so far, where the system tells (Linux)."""
    ticks = 0
    for worker in workers:
        try:
            fields = Path(f"/proc/{worker.pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            return None
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
