"""Worker processes and topics for the Kafka tests."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition

from ontrack.pipeline.kafka.connection import client_arguments, topics_of
from ontrack.pipeline.kafka.provision import create_topics
from ontrack.pipeline.settings import Settings

WAIT_S = 60.0


def settings_for(broker: str, prefix: str) -> Settings:
    return Settings(
        broker=broker, topic_prefix=prefix, group=f"{prefix}group", encoder="hashing", partitions=3
    )


def point_cli_at(settings: Settings, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the command line in this process see the test's settings and nothing else."""
    for name in [name for name in os.environ if name.startswith("ONTRACK_")]:
        monkeypatch.delenv(name)
    for field_name in ("topic_prefix", "broker", "group", "encoder"):
        monkeypatch.setenv(f"ONTRACK_{field_name.upper()}", getattr(settings, field_name))
    monkeypatch.chdir(folder)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class WorkerProcess:
    """One `ontrack worker`; start, kill and start again keep its name."""

    settings: Settings
    directory: Path
    name: str = "w0"
    port: int = field(default_factory=free_port)
    more: dict[str, str] = field(default_factory=dict)
    runtime: str = "faust"
    prelude: str = ""  # lines of Python that the process runs first
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("ONTRACK_")
        }
        environment |= {
            "ONTRACK_TOPIC_PREFIX": self.settings.topic_prefix,
            "ONTRACK_GROUP": self.settings.group,
            "ONTRACK_ENCODER": self.settings.encoder,
            "ONTRACK_PROFILE": self.settings.profile,
            "ONTRACK_RUNTIME": self.runtime,
            "ONTRACK_WATERMARK_CHECK_S": "1",
            "ONTRACK_DATA_DIR": str(self.directory / self.name),
            **self.more,
        }
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"{self.prelude}from ontrack.pipeline.cli import main; main()",
                "worker",
                f"--broker={self.settings.broker}",
                f"--instance={self.name}",
                f"--web-port={self.port}",
            ],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.log.open("ab"),
            cwd=self.directory,
        )

    @property
    def log(self) -> Path:
        return self.directory / f"{self.name}.log"

    def wait_ready(self, wait_s: float = WAIT_S) -> None:
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            assert self.process is not None
            if self.process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=2):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        raise AssertionError(f"worker not ready; its log ends:\n{self.tail()}")

    def metric(self, name: str) -> float:
        """Sum of a metric over its labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as page:
            lines = page.read().decode().splitlines()
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.split("{")[0].split(" ")[0] == name
        )

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(timeout=WAIT_S)
        self.process = None

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


async def provision(settings: Settings) -> None:
    await create_topics(settings)


async def produce(
    settings: Settings, topic: str, items: Iterable[tuple[bytes | None, bytes | None]]
) -> None:
    """Send raw (key, value) pairs."""
    producer = AIOKafkaProducer(
        **client_arguments(settings), acks="all", max_request_size=4 * 1_048_576
    )
    await producer.start()
    try:
        futures = [await producer.send(topic, value, key=key) for key, value in items]
        await asyncio.gather(*futures)
    finally:
        await producer.stop()


async def read_all(settings: Settings, topic: str) -> list[ConsumerRecord]:
    """Everything that stands on a topic now."""
    consumer = AIOKafkaConsumer(**client_arguments(settings), enable_auto_commit=False)
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, number) for number in range(settings.partitions)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        found: list[ConsumerRecord] = []
        while any([await consumer.position(tp) < ends[tp] for tp in partitions]):
            for messages in (await consumer.getmany(timeout_ms=200)).values():
                found.extend(messages)
        return found
    finally:
        await consumer.stop()


async def wait_for(
    settings: Settings, topic: str, count: int, wait_s: float = WAIT_S
) -> list[ConsumerRecord]:
    """Wait until that many different ids stand on a topic; return its messages."""
    deadline = time.monotonic() + wait_s
    while True:
        messages = await read_all(settings, topic)
        ids = {json.loads(message.value)["id"] for message in messages}
        if len(ids) >= count:
            return messages
        if time.monotonic() > deadline:
            raise AssertionError(f"{len(ids)} of {count} ids on {topic} after {wait_s} s")
        await asyncio.sleep(0.5)


def by_id(messages: Iterable[ConsumerRecord]) -> dict[str, bytes]:
    """Values by id; equal ids must have equal bytes."""
    found: dict[str, bytes] = {}
    for message in messages:
        name = json.loads(message.value)["id"]
        assert found.setdefault(name, message.value) == message.value, f"{name} was said twice"
    return found


def output_topics(settings: Settings) -> tuple[str, str, str, str]:
    topics = topics_of(settings)
    return (
        topics.verdicts.name,
        topics.interventions.name,
        topics.scorecards.name,
        topics.dead_letters.name,
    )
