"""SASL, tried on a broker that asks for it; what a worker shows of itself."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from ontrack.pipeline.cli import cli
from ontrack.pipeline.kafka.connection import client_arguments, topics_of
from ontrack.pipeline.kafka.provision import create_topics, partition_counts
from ontrack.pipeline.kafka.sender import send_events
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import simulate_run, task_ids
from ontrack.topics.errors import BrokerUnavailable, InvalidSettings
from tests.broker import LocalBroker
from tests.conftest import started
from tests.pipeline.fleet import WorkerProcess, free_port, read_all, wait_for

PASSWORD = "a secret of this test"


@pytest.fixture(scope="module")
def sasl_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a listener that lets in the user `watcher` alone."""
    plain, guarded, controller = free_port(), free_port(), free_port()
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{guarded},"
        f"CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},"
        f"SASL_PLAINTEXT://127.0.0.1:{guarded}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        "SASL_PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            f'{login} user_watcher="{PASSWORD}";'
        ),
    }
    broker = LocalBroker(tmp_path_factory.mktemp("sasl"), port=plain, controller_port=controller)
    try:
        started(broker, settings)
        yield f"127.0.0.1:{guarded}"
    finally:
        broker.stop()


def settings_with(broker: str, **more: object) -> Settings:
    return Settings(
        broker=broker,
        topic_prefix="s.",
        group="s",
        encoder="hashing",
        partitions=3,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username="watcher",
        **{"sasl_password": PASSWORD, **more},
    )


@pytest.mark.kafka
def test_a_worker_logs_in_and_judges(sasl_broker: str, tmp_path: Path) -> None:
    settings = settings_with(sasl_broker)
    asyncio.run(create_topics(settings))
    worker = WorkerProcess(
        settings,
        tmp_path,
        more={
            "ONTRACK_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
            "ONTRACK_SASL_MECHANISM": "PLAIN",
            "ONTRACK_SASL_USERNAME": "watcher",
            "ONTRACK_SASL_PASSWORD": PASSWORD,
        },
    )
    events = simulate_run(task_ids()[0], 1).events
    try:
        worker.start()
        worker.wait_ready()
        asyncio.run(send_events(settings, events, None))
        verdicts = topics_of(settings).verdicts.name
        steps = sum(event.type == "step" for event in events)
        messages = asyncio.run(wait_for(settings, verdicts, steps))
    finally:
        worker.stop()
    assert len(messages) == steps
    assert {json.loads(message.value)["run_id"] for message in messages} == {events[0].run_id}
    assert PASSWORD not in worker.log.read_text()
    assert asyncio.run(read_all(settings, topics_of(settings).dead_letters.name)) == []


@pytest.mark.kafka
def test_a_wrong_password_is_a_clear_error(sasl_broker: str) -> None:
    settings = settings_with(sasl_broker, sasl_password="wrong")
    with pytest.raises(BrokerUnavailable, match="refuses the login of 'watcher'"):
        asyncio.run(partition_counts(settings))


@pytest.mark.kafka
def test_what_a_worker_prints_are_log_lines_and_nothing_else(
    settings: Settings, tmp_path: Path
) -> None:
    prelude = "import sys; sys.stdout = sys.stderr; "  # Faust's spinner spins on stdout
    worker = WorkerProcess(settings, tmp_path, prelude=prelude)
    try:
        worker.start()
        worker.wait_ready()
    finally:
        worker.stop()
    lines = worker.log.read_text().splitlines()
    assert any("partition_ready" in line for line in lines)
    assert [
        line for line in lines if not re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z \[\w+ *\] ", line)
    ] == []


def test_the_address_of_the_pages_can_be_given_as_a_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Settings] = []

    async def check_topics(_settings: Settings) -> int:
        return 1

    monkeypatch.setattr("ontrack.pipeline.kafka.provision.check_topics", check_topics)
    monkeypatch.setattr("ontrack.pipeline.kafka.app.run_worker", given.append)
    monkeypatch.setattr("ontrack.pipeline.cli.worker.set_up_logging", lambda *_args: None)
    monkeypatch.setattr(asyncio, "set_event_loop_policy", lambda _policy: None)
    result = CliRunner().invoke(cli, ["worker", "--web-host", "10.0.0.7", "--web-port", "7000"])
    assert result.exit_code == 0, result.output
    assert [(found.web_host, found.web_port) for found in given] == [("10.0.0.7", 7000)]


def test_sasl_without_a_password_names_the_setting() -> None:
    settings = Settings(security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_username="u")
    with pytest.raises(InvalidSettings, match="ONTRACK_SASL_PASSWORD"):
        client_arguments(settings)
