"""Which worker has a run: the same partition as the senders', and the latest claim counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka.partitioner import DefaultPartitioner
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from ontrack.pipeline.kafka.messages import Message
from ontrack.pipeline.kafka.owners import OwnerDirectory, advertised_url
from ontrack.pipeline.kafka.partitions import partition_of
from ontrack.pipeline.settings import Settings
from ontrack.topics.errors import BrokerUnavailable, InvalidSettings

HERE, THERE = "http://127.0.0.1:6066", "http://127.0.0.1:7077"


@given(st.text(min_size=1, alphabet=st.characters(exclude_categories=["Cs"])), st.integers(1, 50))
def test_a_run_has_the_partition_that_kafka_gives_its_key(run_id: str, count: int) -> None:
    everywhere = list(range(count))
    expected = DefaultPartitioner()(run_id.encode(), everywhere, everywhere)
    assert partition_of(run_id.encode(), count) == expected


def test_partitions_are_those_of_the_java_client() -> None:
    # murmur2 of "21" is -973932308, as the Java client's own tests have it.
    assert partition_of(b"21", 7) == (-973932308 & 0x7FFF_FFFF) % 7


@pytest.mark.parametrize(
    ("given_", "url"),
    [
        ({}, "http://127.0.0.1:6066"),
        ({"web_host": "::1", "web_port": 1}, "http://[::1]:1"),
        ({"web_advertised_url": "https://gate.example/w1/"}, "https://gate.example/w1"),
    ],
)
def test_a_worker_is_reached_where_its_settings_say(given_: dict[str, Any], url: str) -> None:
    assert advertised_url(Settings(**given_)) == url


class FakeEmitter:
    def __init__(self, problem: Exception | None = None) -> None:
        self.sent: list[Message] = []
        self.problem = problem

    async def emit(self, messages: Sequence[Message]) -> None:
        if self.problem is not None:
            raise self.problem
        self.sent += messages


def directory(
    emitter: Any = None, failures: list[BaseException] | None = None, now_s: float = 1e9
) -> OwnerDirectory:
    async def failed(error: BaseException) -> None:
        assert failures is not None, error
        failures.append(error)

    return OwnerDirectory(
        Settings(instance="w0"), emitter or FakeEmitter(), failed, clock=lambda: now_s
    )


def claim(
    partition: int, url: str, instance: str = "x", nonce: str | None = None, at_s: float = 0.0
) -> Any:
    """Return a claim as it stands in the log; without a nonce, as versions before wrote it."""
    said = {"instance": instance, "url": url, "partition": partition}

    class Stored:
        offset = 0
        timestamp = round(at_s * 1000)
        value = json.dumps(said if nonce is None else said | {"nonce": nonce}).encode()

    return Stored()


def test_the_latest_claim_of_a_partition_counts() -> None:
    known = directory()
    assert known.url_of(1) is None
    known.take(claim(1, "http://a"))
    known.take(claim(2, "http://b"))
    known.take(claim(1, THERE))
    assert (known.url_of(1), known.url_of(2)) == (THERE, "http://b")


def test_ones_own_claim_is_nobody_to_pass_a_question_on_to() -> None:
    known = directory()
    known.take(claim(1, HERE))
    assert known.url_of(1) is None


@pytest.mark.parametrize("value", [b"", None, b"junk", b"{}", b'{"url":1,"partition":"x"}'])
def test_a_claim_that_cannot_be_read_is_passed_over(value: bytes | None) -> None:
    known = directory()
    known.take(claim(1, THERE))
    stored = claim(1, HERE)
    stored.value = value
    known.take(stored)
    assert known.url_of(1) == THERE


async def test_claims_are_written_under_their_partition() -> None:
    emitter = FakeEmitter()
    known = directory(emitter)
    known.claim([3, 1])
    await asyncio.sleep(0)
    assert [(m.topic, m.partition, m.key) for m in emitter.sent] == [
        ("ontrack.owners", 0, b"1"),
        ("ontrack.owners", 0, b"3"),
    ]
    assert json.loads(emitter.sent[0].value or b"") == {
        "instance": "w0",
        "url": HERE,
        "partition": 1,
        "nonce": known.nonce,
    }


async def test_a_claim_that_can_never_be_written_stops_the_worker() -> None:
    failures: list[BaseException] = []
    known = directory(FakeEmitter(BrokerUnavailable("no rights")), failures)
    known.claim([1])
    await asyncio.sleep(0.01)
    assert [str(error) for error in failures] == ["no rights"]


def test_every_worker_is_another() -> None:
    assert directory().nonce != directory().nonce


@pytest.mark.parametrize("url", [HERE, THERE])
def test_a_partition_is_lost_to_a_worker_that_gives_the_same_address(url: str) -> None:
    known = directory()
    known.take(claim(1, HERE, "w0", known.nonce))
    assert not known.is_lost(1)
    known.take(claim(1, url, "w1", "another"))
    assert known.is_lost(1)
    known.take(claim(1, HERE, "w0", known.nonce))
    assert not known.is_lost(1)


def test_a_question_is_never_passed_on_to_our_own_address() -> None:
    known = directory()
    known.take(claim(1, HERE, "w1", "another"))
    assert known.url_of(1) is None


def told_of(known: OwnerDirectory, *claims: Any) -> list[str]:
    with capture_logs() as logs:
        for each in claims:
            known.take(each)
    return [each["event"] for each in logs]


def test_that_another_worker_gives_our_address_is_said_once() -> None:
    known = directory()
    theirs = claim(2, HERE, "w1", "another")
    assert told_of(known, claim(1, HERE, "w0", known.nonce), theirs, theirs) == [
        "address_used_twice"
    ]


def test_one_that_claimed_before_we_did_is_known_by_the_time() -> None:
    known = directory(now_s=1000.0)
    assert told_of(known, claim(2, HERE, "w0", "ours of another day", at_s=999)) == []
    assert told_of(known, claim(2, HERE, "w1", "another", at_s=1001)) == ["address_used_twice"]


def test_of_two_namesakes_at_one_address_the_second_ends_too() -> None:
    first, second = directory(), directory()
    taken = [claim(1, HERE, "w0", each.nonce) for each in (first, second, first)]
    for each in taken[:2]:
        second.take(each)
    with pytest.raises(InvalidSettings, match=f"{HERE}.*--instance"):
        second.take(taken[2])
    assert "instance_used_twice" in told_of(first, *taken[:2])


async def test_a_partition_is_lost_once_somebody_claims_it_after_us() -> None:
    known = directory()
    known.take(claim(1, THERE))
    known.claim([1])
    assert not known.is_lost(1)  # ours is on its way
    known.take(claim(1, "http://even-older"))
    assert not known.is_lost(1)
    known.take(claim(1, HERE))
    assert not known.is_lost(1)
    known.take(claim(1, THERE))
    assert known.is_lost(1)
    assert known.url_of(1) == THERE
    known.claim([1])  # given back to us
    assert not known.is_lost(1)
    await asyncio.sleep(0)


@pytest.mark.parametrize(("instance", "told"), [("w0", 1), ("x", 0)])
def test_a_second_worker_of_the_same_instance_is_named_once(instance: str, told: int) -> None:
    known = directory()
    with capture_logs() as logs:
        known.take(claim(1, HERE, "w0"))
        for _ in range(3):
            known.take(claim(1, THERE, instance))
    named = [(each["instance"], each["other"]) for each in logs]
    assert named == [("w0", THERE)] * told


def test_of_two_workers_of_one_instance_the_second_ends_with_an_error() -> None:
    first, second = directory(), directory()
    second.url = THERE
    taken = [claim(1, HERE, "w0"), claim(1, THERE, "w0"), claim(1, HERE, "w0")]
    for each in taken:
        first.take(each)
    for each in taken[:2]:
        second.take(each)
    with pytest.raises(InvalidSettings, match=f"{HERE}.*--instance"):
        second.take(taken[2])


async def test_that_error_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    class Topic:
        async def getmany(self, **_more: Any) -> dict[int, list[Any]]:
            return {0: [claim(1, url, "w0") for url in (THERE, HERE, THERE)]}

        async def stop(self) -> None: ...

    async def started(_self: OwnerDirectory) -> Any:
        return Topic()

    monkeypatch.setattr(OwnerDirectory, "_started", started)
    failures: list[BaseException] = []
    known = directory(failures=failures)
    known.start()
    for _ in range(10):
        await asyncio.sleep(0)
    assert [type(error) for error in failures] == [InvalidSettings]
    await known.stop()


def test_a_worker_that_was_started_anew_elsewhere_goes_on() -> None:
    known = directory()
    known.take(claim(1, THERE, "w0"))  # ours, before that
    known.take(claim(1, HERE, "w0"))
    known.take(claim(2, HERE, "w0"))
    assert known.url_of(1) is None
    assert not known.is_lost(1)
