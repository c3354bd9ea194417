"""Dead letters: listed as they stand on their topic, and sent again as they came."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import click
import pytest
from aiokafka import AIOKafkaProducer
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.pipeline.cli import cli
from ontrack.pipeline.cli.dead_letters import moment
from ontrack.pipeline.folding.quarantine import dead_letter
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.kafka.connection import topics_of
from ontrack.pipeline.kafka.letters import original
from ontrack.pipeline.kafka.messages import messages_of
from ontrack.pipeline.kafka.partitions import partition_of
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.catalog import catalogue
from ontrack.topics.errors import MalformedMessage, MessageTooLarge, WrongShape
from ontrack.topics.events import Step
from ontrack.topics.verdicts import DeadLetter
from tests.pipeline.fleet import (
    WorkerProcess,
    point_cli_at,
    produce,
    read_all,
    wait_for,
)

Ontrack = Callable[..., Result]
Headers = tuple[tuple[str, bytes | None], ...]
MIB = 1_048_576


@pytest.fixture
def ontrack(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ontrack:
    """The command line, with the test's topics."""
    point_cli_at(settings, monkeypatch, tmp_path)

    def run(*arguments: str) -> Result:
        result = CliRunner().invoke(cli, ["dead-letters", *arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


def letter_of(
    settings: Settings, offset: int, partition: int = 1, wrong_shape: bool = False
) -> DeadLetter:
    topic = topics_of(settings).events.name
    error = WrongShape("field `tool` is missing") if wrong_shape else MalformedMessage("not JSON")
    headers = (("trace", b"\x00\xff"), ("empty", b""), ("none", None), ("trace", b"2"))
    value = b"\xff bytes %d" % offset
    return dead_letter(Record(value, b"run-1", topic, partition, offset, 5, headers), error)


def publish(settings: Settings, *letters: DeadLetter | bytes, at_ms: int | None = None) -> None:
    """Put letters on their topic, with a time of quarantine."""

    async def send() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=settings.broker)
        await producer.start()
        try:
            for letter in letters:
                value = letter if isinstance(letter, bytes) else codecs.encode(letter)
                topic = topics_of(settings).dead_letters.name
                await producer.send_and_wait(topic, value, key=b"k", timestamp_ms=at_ms)
        finally:
            await producer.stop()

    asyncio.run(send())


def on_events(settings: Settings) -> list[tuple[int, bytes | None, bytes | None, tuple]]:
    messages = asyncio.run(read_all(settings, topics_of(settings).events.name))
    return [(m.partition, m.key, m.value, tuple(m.headers)) for m in messages]


def test_what_the_worker_quarantined_is_listed_and_once_mended_judged(
    settings: Settings, ontrack: Ontrack, tmp_path: Path
) -> None:
    worker = WorkerProcess(settings, tmp_path)
    topics = topics_of(settings)
    step = codecs.encode(Step(run_id="a", seq=0, tool="read"))
    # Quarantined by a worker that had a lower limit.
    record = Record(step, b"a", topics.events.name, partition_of(b"a", 3), 1000, 1)
    early = dead_letter(record, MessageTooLarge("too long"))
    publish(settings, early)
    try:
        worker.start()
        worker.wait_ready()
        asyncio.run(produce(settings, topics.events.name, [(b"a", b"{")]))
        asyncio.run(wait_for(settings, topics.dead_letters.name, 2))
        kept = asyncio.run(read_all(settings, topics.dead_letters.name))
        listed = ontrack("list", "--json")
        assert sorted(listed.stdout_bytes.splitlines()) == sorted(m.value for m in kept)
        again = ontrack("replay", "--error", "MessageTooLarge")
        assert (again.exit_code, again.stderr) == (0, "1 sent again, 0 refused, 0 not found\n")
        verdict = json.loads(asyncio.run(wait_for(settings, topics.verdicts.name, 1))[0].value)
        assert verdict["id"] == "a:0"
        ontrack("replay", "--error", "MalformedMessage")
        asyncio.run(wait_for(settings, topics.dead_letters.name, 3))
        assert ontrack("list").stdout.count("(replayed before)") == 1
    finally:
        worker.stop()


def test_a_letter_is_one_line_with_place_time_class_and_text(
    settings: Settings, ontrack: Ontrack
) -> None:
    publish(settings, letter_of(settings, 7), at_ms=1_700_000_000_123)
    shown = ontrack("list")
    topic = topics_of(settings).events.name
    assert shown.stdout == (f"{topic}:1:7  2023-11-14T22:13:20.123Z  MalformedMessage: not JSON\n")
    assert shown.stderr == "1 dead letters: MalformedMessage 1\n"


def test_each_letter_is_listed_once_and_other_messages_are_passed_over(
    settings: Settings, ontrack: Ontrack
) -> None:
    letter = letter_of(settings, 7)
    publish(settings, letter, letter, b"garbage", b'{"type":"dead_letter"}')
    shown = ontrack("list", "--json")
    assert shown.stdout_bytes == codecs.encode(letter) + b"\n"
    assert "2 messages on the topic are no dead letters" in shown.stderr


def test_they_can_be_chosen_by_class_time_and_number(settings: Settings, ontrack: Ontrack) -> None:
    for day in range(1, 6):
        at = datetime(2026, 11, day, tzinfo=UTC)
        publish(settings, letter_of(settings, day), at_ms=round(at.timestamp() * 1000))
    publish(settings, letter_of(settings, 9, wrong_shape=True), at_ms=1)  # a clock that is wrong

    def offsets(*options: str) -> list[int]:
        shown = ontrack("list", "--json", *options)
        return [json.loads(line)["offset"] for line in shown.stdout.splitlines()]

    assert sorted(offsets()) == [1, 2, 3, 4, 5, 9]
    assert offsets("--since", "2026-11-03T01:00:00+01:00") == [3, 4, 5]
    assert offsets("--limit", "2") == [4, 5]
    assert offsets("--error", "WrongShape") == [9]
    assert offsets("--error", "TooDeep") == []


def test_a_replayed_message_is_the_original_with_one_header_more(
    settings: Settings, ontrack: Ontrack
) -> None:
    letter = letter_of(settings, 7, partition=2)
    publish(settings, letter, letter, letter_of(settings, 8))
    done = ontrack("replay", "--id", letter.id, "--json")
    assert done.exit_code == 0
    report = json.loads(done.stdout)
    assert (report["state"], report["sent_as"]) == ("sent", f"{letter.topic}:2:0")
    headers = (("trace", b"\x00\xff"), ("empty", b""), ("none", None), ("trace", b"2"))
    named = ("ontrack_replayed_from", letter.id.encode())
    assert on_events(settings) == [(2, b"run-1", b"\xff bytes 7", (*headers, named))]


def test_a_dry_run_says_what_it_would_send_and_sends_nothing(
    settings: Settings, ontrack: Ontrack
) -> None:
    publish(settings, letter_of(settings, 7), letter_of(settings, 8, wrong_shape=True))
    done = ontrack("replay", "--all", "--dry-run")
    assert done.exit_code == 0
    assert done.stdout.count("would be sent") == 2
    assert "2 would be sent, 0 refused, 0 not found" in done.stderr
    assert on_events(settings) == []


def test_what_cannot_be_sent_is_refused_with_the_reason_and_the_rest_is_sent(
    settings: Settings, ontrack: Ontrack
) -> None:
    good = letter_of(settings, 7)
    file = good.model_copy(update={"id": "runs.jsonl:0:3", "topic": "runs.jsonl"})
    own = good.model_copy(update={"id": "own", "topic": topics_of(settings).verdicts.name})
    cut = good.model_copy(update={"id": "cut", "value_bytes": 9_000_000})
    odd = good.model_copy(update={"id": "odd", "value_base64": "%"})
    publish(settings, file, own, cut, odd, good)
    done = ontrack("replay", "--all")
    assert done.exit_code == 1
    assert "runs.jsonl:0:3  refused: it was read from 'runs.jsonl'" in done.stderr
    assert "use ontrack send" in done.stderr
    assert "own  refused: it was read from" in done.stderr
    assert "cut  refused: only 9 of its 9000000 bytes were kept" in done.stderr
    assert "odd  refused: its original bytes cannot be read" in done.stderr
    assert "1 sent again, 4 refused, 0 not found" in done.stderr
    assert len(on_events(settings)) == 1
    assert on_events(settings)[0][2] == b"\xff bytes 7"


def test_an_id_that_is_not_there_exits_1_and_is_named(settings: Settings, ontrack: Ontrack) -> None:
    publish(settings, letter_of(settings, 7))
    done = ontrack("replay", "--id", letter_of(settings, 7).id, "--id", "nowhere:0:1")
    assert done.exit_code == 1
    assert "nowhere:0:1: no such dead letter is kept" in done.stderr
    assert "1 sent again, 0 refused, 1 not found" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["replay"],
        ["replay", "--all", "--error", "TooDeep"],
        ["list", "--since", "2026-11-30"],
        ["list", "--since", "2026-11-30T08:00:00"],
        ["list", "--limit", "0"],
        ["burn"],
    ],
)
def test_bad_usage_exits_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli, ["dead-letters", *arguments])
    assert result.exit_code == 2
    assert "Error: " in result.stderr


zones = st.integers(-14 * 60, 14 * 60).map(lambda m: timezone(timedelta(minutes=m)))


@given(ms=st.integers(0, 7_000_000_000_000), zone=zones)
def test_a_time_is_read_to_the_millisecond_in_any_zone(ms: int, zone: timezone) -> None:
    context, option = click.Context(click.Command("c")), click.Option(["--since"])
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    assert moment(context, option, time.astimezone(zone).isoformat()) == ms


optional = st.none() | st.binary(max_size=20)


@given(
    value=st.binary(max_size=50),
    key=optional,
    headers=st.lists(st.tuples(st.text(max_size=5), optional), max_size=3),
)
def test_the_original_comes_back_byte_for_byte(
    value: bytes, key: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    letter = dead_letter(Record(value, key, "t", 0, 0, 1, headers), MalformedMessage("no"))
    kept = codecs.decode_output(codecs.encode(letter))
    assert isinstance(kept, DeadLetter)
    assert original(kept) == (key, value, headers)


def size_on_the_topic(record: Record) -> int:
    """Bytes of a record's dead letter as it is sent, with more than its own headers take."""
    letter = dead_letter(record, MalformedMessage("no"))
    ((message, _, _),) = messages_of(catalogue(), record, [letter])
    return len(message.value or b"") + len(message.key or b"") + 1000


ROOM = int(catalogue().dead_letters.settings["max.message.bytes"])


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        (b"k", b"junk", (("\x01" * 1_900_000, b""),)),
        (b"k", b"junk", (("a", b""),) * 600_000),
        (b"k", b"junk", (("a", None),) * 600_000),
        (b"k" * 2_000_000, b"junk", ()),
        (b"k" * 40_000_000, b"v" * 40_000_000, (("a", b"x" * 40_000_000),)),
    ],
    ids=["a long name", "many headers", "many nulls", "a long key", "all of it"],
)
def test_a_letter_whose_key_or_headers_do_not_fit_is_cut_and_cannot_be_sent_again(
    key: bytes, value: bytes, headers: Headers
) -> None:
    record = Record(value, key, "ontrack.events", 0, 7, 1, headers)
    assert size_on_the_topic(record) <= ROOM
    letter = dead_letter(record, MalformedMessage("no"))
    assert "ontrack_cut" in dict(letter.headers)
    with pytest.raises(ValueError, match="not all of its key and headers was kept"):
        original(letter)


def test_key_and_headers_of_a_usual_size_are_kept_whole_beside_the_longest_value() -> None:
    headers: Headers = (*((f"h{n}", b"x" * 100) for n in range(50)), ("n", None))
    record = Record(b"v" * 2 * MIB, b"k" * 512, "ontrack.events", 0, 7, 1, headers)
    assert original(dead_letter(record, MalformedMessage("no"))) == (
        record.key,
        record.value,
        list(headers),
    )


lengths = st.sampled_from((1, 1, 100, 70_000, 700_000, 5_000_000))
long_bytes = st.builds(lambda part, times: part * times, st.binary(max_size=2), lengths)
long_text = st.builds(
    lambda part, times: part * times,
    st.text(st.characters(exclude_categories=("Cs",)), max_size=2),
    st.sampled_from((1, 1, 100, 70_000, 700_000)),
)
many_headers = st.builds(
    lambda some, times: tuple(some) * times,
    st.lists(st.tuples(long_text, st.none() | long_bytes), max_size=3),
    st.sampled_from((1, 1, 1, 1000)),
).filter(lambda headers: sum(len(n) + len(v or b"") for n, v in headers) < 20 * MIB)


@settings(max_examples=30, deadline=None)
@given(key=st.none() | long_bytes, value=long_bytes, headers=many_headers)
def test_whatever_is_quarantined_its_letter_fits_on_the_topic_and_never_comes_back_cut(
    key: bytes | None, value: bytes, headers: Headers
) -> None:
    record = Record(value, key, "ontrack.events", 0, 7, 1, headers)
    assert size_on_the_topic(record) <= ROOM
    try:
        found = original(dead_letter(record, MalformedMessage("no")))
    except ValueError as error:
        assert "kept" in str(error)  # noqa: PT017
        assert len(key or b"") > 65_536 or len(value) > 4 * MIB or len(headers) > 0
    else:
        assert found == (key, value, list(headers))
