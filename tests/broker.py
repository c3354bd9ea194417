"""A real Kafka broker for tests: one that is given, or one started with scripts/kafka."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient, NewTopic

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "kafka"
MISSING = 3  # the exit code of scripts/kafka when Java, Maven or the jars are not to be had

# What a test wants and a person does not: events recorded long ago are kept, and a broker that
# was killed may register again after 3 s rather than 9.
TEST_SETTINGS = {
    "log.retention.ms": "-1",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}


class BrokerUnavailableError(Exception):
    """No broker can be had on this machine; the text says what to install."""


@dataclass
class LocalBroker:
    """A broker of the tests' own, on free ports, with its data below `directory`.

    A restart keeps ports and data, so clients that are connected find it again.
    """

    directory: Path
    port: int = 0
    controller_port: int = 0
    address: str = ""

    def start(self, settings: Mapping[str, str] = TEST_SETTINGS) -> str:
        """Start it, wait until it answers and return its address."""
        extra = [f"--set={name}={value}" for name, value in settings.items()]
        if self.controller_port:
            extra.append(f"--controller-port={self.controller_port}")
        self.address = self._run("start", f"--port={self.port}", "--heap=256m", *extra).strip()
        return self.address

    def stop(self) -> None:
        """Stop it in good order; fine when it does not run."""
        self._run("stop")

    def kill(self) -> None:
        """Kill it as a crash would: nothing is flushed, nobody is told."""
        os.kill(self.pid(), signal.SIGKILL)

    def pid(self) -> int:
        """Process id of the broker, which must run."""
        return int(self._run("status").split()[-1])

    def _run(self, command: str, *options: str) -> str:
        done = subprocess.run(
            [sys.executable, str(SCRIPT), command, f"--dir={self.directory}", *options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == MISSING:
            raise BrokerUnavailableError(done.stderr.strip())
        if done.returncode != 0:
            raise RuntimeError(f"scripts/kafka {command} failed: {done.stderr.strip()}")
        return done.stdout


def check_reachable(address: str) -> None:
    """Raise `ConnectionError` unless something listens on the first of `address`'s brokers."""
    host, _, port = address.split(",")[0].rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        raise ConnectionError(f"ONTRACK_TEST_BROKER={address} is not reachable: {error}") from error


async def create_topic(
    address: str, name: str, *, partitions: int = 1, settings: Mapping[str, str] | None = None
) -> None:
    """Create one topic: the broker makes none by itself."""
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    try:
        topic = NewTopic(name, partitions, 1, topic_configs=dict(settings or {}))
        await admin.create_topics([topic])
    finally:
        await admin.close()
