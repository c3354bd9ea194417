"""TLS, with and without a login, tried on a broker that insists on it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ontrack.pipeline.cli import cli
from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.kafka.connection import topics_of
from ontrack.pipeline.kafka.provision import create_topics, partition_counts
from ontrack.pipeline.kafka.sender import send_events
from ontrack.pipeline.kafka.tailer import tail
from ontrack.pipeline.sdk.client import Monitor
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import simulate_run, task_ids
from ontrack.topics import codecs
from ontrack.topics.errors import BrokerUnavailable
from tests.broker import LocalBroker
from tests.conftest import started
from tests.pipeline.certificates import Certificates, make_certificates
from tests.pipeline.fleet import WorkerProcess, free_port, read_all, wait_for

PASSWORD = "a secret of this test"
LISTENERS = {"PLAIN": "PLAINTEXT", "OPEN": "SSL", "MUTUAL": "SSL", "MISNAMED": "SSL"} | {
    "LOGIN": "SASL_SSL"
}


@dataclass(frozen=True)
class GuardedBroker:
    """A broker with a listener for each kind of guard, and the certificates for them."""

    ports: dict[str, int]
    files: Certificates

    def settings(self, listener: str, prefix: str, **more: Any) -> Settings:
        protocol = LISTENERS[listener]
        values: dict[str, Any] = {
            "broker": f"127.0.0.1:{self.ports[listener]}",
            "topic_prefix": prefix,
            "group": f"{prefix}group",
            "encoder": "hashing",
            "partitions": 3,
            "security_protocol": protocol,
        }
        if protocol.endswith("SSL"):
            values["ssl_cafile"] = str(self.files.authority)
        if protocol.startswith("SASL"):
            values |= {
                "sasl_mechanism": "PLAIN",
                "sasl_username": "watcher",
                "sasl_password": PASSWORD,
            }
        return Settings(**(values | more))

    @property
    def our_certificate(self) -> dict[str, str]:
        return {
            "ssl_certfile": str(self.files.client),
            "ssl_keyfile": str(self.files.client_key),
        }


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    files = make_certificates(tmp_path_factory.mktemp("certificates"))
    ports = {name: free_port() for name in LISTENERS}
    controller = free_port()
    addresses = [f"{name}://127.0.0.1:{port}" for name, port in ports.items()]
    kinds = [f"{name}:{protocol}" for name, protocol in LISTENERS.items()]
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    settings = {
        "listeners": ",".join([*addresses, f"CONTROLLER://127.0.0.1:{controller}"]),
        "advertised.listeners": ",".join(addresses),
        "listener.security.protocol.map": ",".join([*kinds, "CONTROLLER:PLAINTEXT"]),
        "inter.broker.listener.name": "PLAIN",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(files.broker),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(files.authority),
        "listener.name.misnamed.ssl.keystore.location": str(files.misnamed),
        "listener.name.mutual.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": f'{login} user_watcher="{PASSWORD}";',
    }
    broker = LocalBroker(
        tmp_path_factory.mktemp("tls"), port=ports["PLAIN"], controller_port=controller
    )
    try:
        started(broker, settings)
        yield GuardedBroker(ports, files)
    finally:
        broker.stop()


def variables(settings: Settings) -> dict[str, str]:
    """What a process needs to reach the broker as these settings do."""
    found = {
        f"ONTRACK_{name.upper()}": str(value)
        for name in ("security_protocol", "sasl_mechanism", "sasl_username", "ssl_cafile")
        + ("ssl_certfile", "ssl_keyfile")
        if (value := getattr(settings, name)) is not None
    }
    if settings.sasl_password is not None:
        found["ONTRACK_SASL_PASSWORD"] = settings.sasl_password.get_secret_value()
    return found


async def tailed(settings: Settings) -> list[bytes]:
    return [value async for value in tail(settings, True, 2.0) if value is not None]


@pytest.mark.kafka
@pytest.mark.parametrize("listener", ["MUTUAL", "LOGIN"])
def test_worker_send_and_tail_work_over_tls_and_say_what_is_said_without(
    guarded: GuardedBroker, listener: str, tmp_path: Path
) -> None:
    more = guarded.our_certificate if listener == "MUTUAL" else {}
    settings = guarded.settings(listener, f"v{listener.lower()}.", **more)
    asyncio.run(create_topics(settings))
    worker = WorkerProcess(settings, tmp_path, more=variables(settings))
    events = simulate_run(task_ids()[0], 1, "loop").events
    embedded = EmbeddedMonitor(settings)
    expected = {out.id: codecs.encode(out) for event in events for out in embedded.feed(event)}
    try:
        worker.start()
        worker.wait_ready()
        asyncio.run(send_events(settings, events, None))
        asyncio.run(wait_for(settings, topics_of(settings).scorecards.name, 1))
        said = asyncio.run(tailed(settings))
    finally:
        worker.stop()
    assert len(expected) > 5
    assert {json.loads(value)["id"]: value for value in said} == expected
    assert PASSWORD not in worker.log.read_text()


@pytest.mark.kafka
async def test_the_client_sends_over_tls(guarded: GuardedBroker) -> None:
    settings = guarded.settings("LOGIN", "c.")
    await create_topics(settings)
    async with Monitor(run_id="r", settings=settings) as run:
        await run.step("look", {"order": "A-17"}, result="one")
    messages = await read_all(settings, topics_of(settings).events.name)
    assert [json.loads(m.value)["type"] for m in messages] == ["run_started", "step", "run_ended"]


WRONG = [
    ("OPEN", {"ssl_cafile": "stranger"}, r"is not trusted .*set ssl_cafile"),
    ("OPEN", {"ssl_cafile": None}, r"is not trusted .*set ssl_cafile"),
    ("MISNAMED", {}, r"is not made for '127\.0\.0\.1'"),
    ("MUTUAL", {}, r"asks for a client certificate .*set ssl_certfile"),
    (
        "MUTUAL",
        {"ssl_certfile": "strange_client", "ssl_keyfile": "strange_client_key"},
        r"does not accept our client certificate",
    ),
    ("LOGIN", {"sasl_password": "wrong"}, r"refuses the login of 'watcher'"),
    ("LOGIN", {"ssl_cafile": "stranger"}, r"is not trusted"),
]


def wrong_settings(guarded: GuardedBroker, listener: str, wrong: dict[str, Any]) -> Settings:
    values = {
        name: str(getattr(guarded.files, value)) if name.startswith("ssl") and value else value
        for name, value in wrong.items()
    }
    return guarded.settings(listener, "w.", **values)


@pytest.mark.kafka
@pytest.mark.parametrize(("listener", "wrong", "said"), WRONG)
def test_what_is_wrong_with_tls_is_said_in_words(
    guarded: GuardedBroker, listener: str, wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(BrokerUnavailable, match=said):
        asyncio.run(partition_counts(wrong_settings(guarded, listener, wrong)))


@pytest.mark.kafka
@pytest.mark.parametrize(("listener", "wrong", "said"), [WRONG[0], WRONG[2], WRONG[3]])
def test_doctor_says_it_and_fails(
    guarded: GuardedBroker,
    listener: str,
    wrong: dict[str, Any],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = wrong_settings(guarded, listener, wrong)
    for name, value in variables(settings).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ONTRACK_ENCODER", "hashing")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["doctor", "--broker", settings.broker])
    assert result.exit_code == 1
    assert re.search(said, result.output), result.output


@pytest.mark.kafka
def test_a_worker_says_it_and_ends(guarded: GuardedBroker, tmp_path: Path) -> None:
    workers = []
    for number, (listener, wrong, said) in enumerate((WRONG[0], WRONG[2], WRONG[3])):
        settings = wrong_settings(guarded, listener, wrong)
        workers.append((WorkerProcess(settings, tmp_path, f"w{number}"), said))
        workers[-1][0].more = variables(settings)
        workers[-1][0].start()
    for worker, said in workers:
        assert worker.process is not None
        assert worker.process.wait(60) == 2
        assert re.search(said, worker.log.read_text()), worker.tail()
        assert "Traceback" not in worker.log.read_text()


@pytest.mark.kafka
def test_a_plain_client_is_told_nothing_it_could_misread(guarded: GuardedBroker) -> None:
    settings = guarded.settings("PLAIN", "p.", security_protocol="SSL")
    with pytest.raises(BrokerUnavailable, match="does it speak TLS there"):
        asyncio.run(partition_counts(settings))
