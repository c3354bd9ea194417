"""The three feeds against what they read: this process, a real daemon, a real broker."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiokafka import AIOKafkaProducer, ConsumerRecord
from aiokafka.admin.new_partitions import NewPartitions

from ontrack.pipeline.dashboard.feeds import kafka as feed_kafka
from ontrack.pipeline.dashboard.feeds import topic as run_topic
from ontrack.pipeline.dashboard.feeds.base import LETTER_CHARACTERS_MAX, Heard
from ontrack.pipeline.dashboard.feeds.embedded import EmbeddedFeed, play
from ontrack.pipeline.dashboard.feeds.feed import Feed, FeedState, FeedStatus, Unavailable
from ontrack.pipeline.dashboard.feeds.http import HttpFeed
from ontrack.pipeline.dashboard.feeds.kafka import KafkaFeed
from ontrack.pipeline.dashboard.feeds.topic import RunTopic
from ontrack.pipeline.dashboard.fleet.model import FleetModel
from ontrack.pipeline.dashboard.run.model import RunFold, RunPicture
from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.kafka.connection import start_admin, topics_of
from ontrack.pipeline.kafka.log import LogReader
from ontrack.pipeline.kafka.provision import partition_counts
from ontrack.pipeline.kafka.sender import send_events, send_knowledge
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import contracts, references, simulate_run, task_ids
from ontrack.topics import codecs
from ontrack.topics.errors import BrokerUnavailable
from ontrack.topics.events import Event, RunEnded, RunStarted, Step
from ontrack.topics.verdicts import DeadLetter, Output, Verdict
from tests.broker import LocalBroker
from tests.pipeline.dashboard.said import dead_letter, decision, verdict
from tests.pipeline.fleet import (
    WAIT_S,
    WorkerProcess,
    by_id,
    output_topics,
    produce,
    provision,
    read_all,
    settings_for,
    wait_for,
)
from tests.pipeline.serving.served import served

HOSTILE = '<b onclick="x">'


class Listener:
    """Keeps what a feed says."""

    def __init__(self) -> None:
        self.said: list[tuple[Output, int]] = []
        self.model = FleetModel()

    def __call__(self, output: Output, time_ms: int) -> None:
        self.said.append((output, time_ms))
        self.model.said(output, time_ms)

    @property
    def lines(self) -> dict[str, bytes]:
        """Bytes by id; equal ids must have equal bytes."""
        found: dict[str, bytes] = {}
        for output, _ in self.said:
            line = codecs.encode(output)
            assert found.setdefault(output.id, line) == line
        return found


@asynccontextmanager
async def started(feed: Feed) -> AsyncIterator[Listener]:
    listener = Listener()
    await feed.start(listener)
    try:
        yield listener
    finally:
        await feed.stop()


async def until(condition: Callable[[], bool], wait_s: float = WAIT_S) -> None:
    async with asyncio.timeout(wait_s):
        while not condition():
            await asyncio.sleep(0.02)


async def until_it_is(feed: Feed, status: FeedStatus) -> None:
    await until(lambda: feed.state.status == status)


def run_of(run_id: str, fault: str | None = None, task: int = 0) -> list[Event]:
    return list(simulate_run(task_ids()[task], 1, fault, run_id=run_id).events)


def monitor(settings: Settings) -> EmbeddedMonitor:
    return EmbeddedMonitor(settings, references(), contracts())


def published(settings: Settings, *runs: list[Event]) -> dict[str, bytes]:
    """What is to be said of runs, without the gate's answers."""
    fresh = monitor(settings)
    outputs = [output for events in runs for event in events for output in fresh.feed(event)]
    return {output.id: codecs.encode(output) for output in outputs}


def check_picture(picture: RunPicture, said: dict[str, bytes]) -> None:
    """The picture says what was published."""
    card = json.loads(said[f"{picture.run_id}:end"])
    assert picture.final
    assert picture.scorecard == card
    for step in picture.timeline:
        line = json.loads(said[f"{picture.run_id}:{step.seq}"])
        assert (step.verdict, step.severity) == (line["verdict"], line["severity"])
        assert list(step.reasons) == line["reasons"]
    assert picture.settings["settings"] == card["settings"]
    assert picture.notes == ()


# In this process.


async def test_the_embedded_feed_says_what_its_monitor_says_and_shows_its_runs() -> None:
    settings = Settings(encoder="hashing")
    runs = [run_of("clean"), run_of("looping", "loop", 1), run_of("wild", "irreversible", 2)]
    feed = EmbeddedFeed(monitor(settings), play(runs, 0.0, at_once=2))
    async with started(feed) as listener:
        await until(lambda: listener.model.totals().group.open_runs == 0 < len(listener.said))
        await until(lambda: "all events" in feed.state.text)
        said = {
            name: line for name, line in listener.lines.items() if b'"type":"decision"' not in line
        }
        assert said == published(settings, *runs)
        for events in runs:
            picture = await feed.picture(events[0].run_id)
            check_picture(picture, said)
            assert [step["seq"] for step in picture.decisions] == [
                step.seq for step in picture.timeline
            ]
            found = await feed.run_events(events[0].run_id)
            assert found == [codecs.encode(event) for event in events]
        known = await feed.known()
        assert [item.reference_id for item in known.references] == sorted(
            item.reference_id for item in references()
        )
        with pytest.raises(Unavailable, match="'nobody'"):
            await feed.picture("nobody")
        with pytest.raises(Unavailable, match="'nobody'"):
            await feed.run_events("nobody")


async def test_a_picture_of_a_run_that_goes_on_folds_only_what_is_new() -> None:
    events = run_of("r")
    feed = EmbeddedFeed(monitor(Settings(encoder="hashing")))
    async with started(feed):
        for number, event in enumerate(events, start=1):
            await feed.take(event)
            picture = await feed.picture("r")
            assert feed._pictures.events == number
        assert picture.final
        again = await asyncio.gather(*(feed.picture("r") for _ in range(5)))
        assert again == [picture] * 5
        assert feed._pictures.events == len(events)


async def test_a_run_halted_by_its_parent_is_halted_in_its_picture() -> None:
    feed = EmbeddedFeed(monitor(Settings(encoder="hashing")))
    async with started(feed) as listener:
        await feed.take(RunStarted(run_id="child", parent_run_id="parent"))
        await feed.take(Step(run_id="child", tool="look"))
        for _ in range(40):
            await feed.take(Step(run_id="parent", tool="look", args={"n": 1}, result="same"))
        assert listener.model.row("parent").state == "halted"  # type: ignore[union-attr]
        assert listener.model.row("child").state == "halted"  # type: ignore[union-attr]
        picture = await feed.picture("child")
        assert picture.state == "halted"
        acts = [act for step in picture.timeline for act in step.interventions]
        assert len(acts) == 1


async def test_a_source_that_fails_is_down_and_what_was_folded_stays() -> None:
    async def source() -> AsyncIterator[Event]:
        yield Step(run_id="r", tool="look")
        raise OSError("the secret is 4711")

    feed = EmbeddedFeed(monitor(Settings(encoder="hashing")), source())
    async with started(feed) as listener:
        await until_it_is(feed, "down")
        assert "OSError" in feed.state.text
        assert "4711" not in feed.state.text
        assert "r:0" in listener.lines
        assert (await feed.picture("r")).state == "open"


async def test_a_listener_that_fails_does_not_end_the_feed() -> None:
    heard: list[Output] = []

    def listen(output: Output, _time_ms: int) -> None:
        heard.append(output)
        raise RuntimeError("a page is broken")

    feed = EmbeddedFeed(monitor(Settings(encoder="hashing")))
    await feed.start(listen)
    await feed.take(Step(run_id="r", seq=0, tool="look"))
    await feed.take(Step(run_id="r", seq=1, tool="look"))
    await feed.stop()
    assert [one.seq for one in heard if isinstance(one, Verdict)] == [0, 1]


def test_what_is_remembered_of_dead_letters_and_decisions_is_bounded() -> None:
    heard = Heard()
    for number in range(300):
        heard.said(dead_letter(number, size=40_000), 1_000 + number)
        heard.said(decision("r", number), number)
    letters = heard.letters(1000)
    assert len(letters) == 200
    assert (letters[0].said.offset, letters[0].time_ms) == (299, 1_299)
    heard.said(dead_letter(299), 9_999)
    assert heard.letters(1)[0].time_ms == 1_299, "said twice: the first time counts"
    assert all(len(one.said.value_base64 or "") == LETTER_CHARACTERS_MAX for one in letters)
    assert all(one.said.value_bytes == 30_000 for one in letters)
    assert heard.letters(0) == []
    assert len(heard._decisions["r"]) == 50


async def test_a_run_judged_under_other_settings_is_shown_with_a_note() -> None:
    feed = EmbeddedFeed(monitor(Settings(encoder="hashing")))
    async with started(feed):
        await feed.take(Step(run_id="r", tool="look"))
        assert (await feed.picture("r")).notes == ()
        stamp = (await feed.picture("r")).settings
        feed._told.said(verdict("r", 1, settings="other", engine=stamp["engine"]), 0)
        assert "other settings" in (await feed.picture("r")).notes[0]
        feed._told.said(verdict("r", 2, settings=stamp["settings"], engine="0.1"), 0)
        assert "version 0.1" in (await feed.picture("r")).notes[0]


# A daemon.


def references_file(folder: Path) -> str:
    """References as events, one a line, of a task with a hostile name."""
    steps = [
        Step(run_id="gold", task_id=HOSTILE, seq=n, tool=tool, action=f"do {tool}", args={"n": n})
        for n, tool in enumerate(("search", HOSTILE, "edit"))
    ]
    path = folder / "gold.jsonl"
    ended = RunEnded(run_id="gold", task_id=HOSTILE, outcome="success")
    path.write_bytes(b"\n".join(codecs.encode(event) for event in (*steps, ended)))
    return str(path)


def told(run_id: str) -> list[Event]:
    tools = ("search", HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, "edit")
    steps: list[Event] = [
        Step(run_id=run_id, task_id=HOSTILE, seq=n, tool=tool, action=f"do {tool}", args={"n": 1})
        for n, tool in enumerate(tools)
    ]
    return [*steps, RunEnded(run_id=run_id, outcome="failure")]


async def post(url: str, *events: Event) -> None:
    body = b"\n".join(codecs.encode(event) for event in events)
    async with aiohttp.ClientSession() as http, http.post(url + "/v1/events", data=body) as answer:
        assert answer.status == 200


async def test_the_http_feed_says_what_the_daemon_prints_and_shows_its_runs(
    tmp_path: Path,
) -> None:
    with served(tmp_path, "--references", references_file(tmp_path)) as daemon:
        await post(daemon.url, *told("before"))
        feed = HttpFeed(daemon.url + "/")
        async with started(feed) as listener:
            await until_it_is(feed, "live")
            await until(lambda: "before:end" in listener.lines)
            await post(daemon.url, *told(HOSTILE))
            await until(lambda: f"{HOSTILE}:end" in listener.lines)
            printed = {one["id"]: one for one in daemon.outputs()}
            assert {name: json.loads(line) for name, line in listener.lines.items()} == printed
            for run_id in ("before", HOSTILE):
                picture = await feed.picture(run_id)
                check_picture(picture, listener.lines)
                assert picture.coupling is not None
                assert picture.coupling.columns[1].tool == HOSTILE
                assert any(step.verdict != "OK" for step in picture.timeline)
                found = await feed.run_events(run_id)
                assert [json.loads(line)["type"] for line in found] == ["step"] * 7 + ["run_ended"]
            known = await feed.known()
            assert [item.task_id for item in known.references] == [HOSTILE]
            with pytest.raises(Unavailable, match="'nobody'"):
                await feed.picture("nobody")


async def test_the_http_feed_tells_of_dead_letters(tmp_path: Path) -> None:
    with served(tmp_path) as daemon:
        feed = HttpFeed(daemon.url)
        async with started(feed):
            await until_it_is(feed, "live")
            async with aiohttp.ClientSession() as http:
                for body in (b"{}", b'{"type":"step","run_id":"x"}'):
                    async with http.post(daemon.url + "/v1/events", data=body) as answer:
                        assert answer.status == 400
            await until(lambda: len(feed._told.heard.letters(9)) == 2)
            (letter,) = await feed.dead_letters(1)
            assert "tool" in letter.said.error.text
            assert abs(letter.time_ms - time.time() * 1_000) < 600_000


async def test_the_http_feed_is_down_without_a_daemon_and_live_again_with_one(
    tmp_path: Path,
) -> None:
    with served(tmp_path) as daemon:
        feed = HttpFeed(daemon.url)
        async with started(feed) as listener:
            await until_it_is(feed, "live")
            await post(daemon.url, Step(run_id="one", tool="look"))
            await until(lambda: "one:0" in listener.lines)
            daemon.stop(signal.SIGKILL)
            await until_it_is(feed, "down")
            assert "ontrack serve" in feed.state.text
            with pytest.raises(Unavailable, match="does not answer"):
                await feed.picture("one")
            port = daemon.url.rpartition(":")[2]
            with served(tmp_path, "--port", port) as again:
                assert again.url == daemon.url
                await until_it_is(feed, "live")
                await post(again.url, Step(run_id="two", tool="look"))
                await until(lambda: "two:0" in listener.lines)


async def test_the_http_feed_shows_runs_whatever_their_ids_look_like(tmp_path: Path) -> None:
    odd = [".", "..", "a/../b", "/", "a%2Fb", "?x=1#y", "line\nend\n", "\\"]
    with served(tmp_path) as daemon:
        feed = HttpFeed(daemon.url)
        async with started(feed):
            await until_it_is(feed, "live")
            for run_id in odd:
                await post(daemon.url, Step(run_id=run_id, seq=0, tool="look"))
                assert (await feed.picture(run_id)).run_id == run_id
                (line,) = await feed.run_events(run_id)
                assert json.loads(line)["run_id"] == run_id


async def test_the_http_feed_says_that_the_token_is_missing(tmp_path: Path) -> None:
    with served(tmp_path, ONTRACK_WEB_TOKEN="s3cret") as daemon:
        closed, opened = HttpFeed(daemon.url), HttpFeed(daemon.url, "s3cret")
        async with started(closed), started(opened):
            await until_it_is(closed, "down")
            assert "ONTRACK_WEB_TOKEN" in closed.state.text
            await until_it_is(opened, "live")
            assert (await opened.known()).references == ()


# A broker.


@pytest.fixture
def worker_of(worker: WorkerProcess) -> WorkerProcess:
    worker.start()
    worker.wait_ready()
    return worker


async def groups(settings: Settings) -> set[str]:
    admin = await start_admin(settings)
    try:
        return {group[0] for group in await admin.list_consumer_groups()}
    finally:
        await admin.close()


@pytest.mark.kafka
async def test_the_kafka_feed_says_what_stands_on_the_topics_and_folds_runs_again(
    settings: Settings, worker_of: WorkerProcess
) -> None:
    known = references()
    await send_knowledge(settings, references=known, contracts=contracts())
    runs = [run_of("clean"), run_of("looping", "loop", 1), run_of("wild", "inversion", 2)]
    await send_events(settings, iter(runs[0]), rate=None)
    await wait_for(settings, topics_of(settings).scorecards.name, 1)
    before = await groups(settings)
    feed = KafkaFeed(settings)
    async with started(feed) as listener:
        await until(lambda: "clean:end" in listener.lines)
        assert feed.state.status == "live"
        # Published once the run had begun: it is judged by what was there before.
        newer = [one.model_copy(update={"steps": one.steps[:1]}) for one in known]
        await send_events(settings, iter(runs[1][:3]), rate=None)
        await until(lambda: f"looping:{runs[1][2].seq}" in listener.lines)
        first = await feed.picture("looping")
        assert (first.final, len(first.timeline)) == (False, len(first.nodes))
        await send_knowledge(settings, references=newer)
        await send_events(settings, iter([*runs[1][3:], *runs[2]]), rate=None)
        await until(lambda: {"looping:end", "wild:end"} <= listener.lines.keys())
        on_topics: dict[str, bytes] = {}
        for topic in output_topics(settings):
            on_topics |= by_id(await read_all(settings, topic))
        assert listener.lines == on_topics
        for events in runs:
            run_id = events[0].run_id
            check_picture(await feed.picture(run_id), on_topics)
            found = [json.loads(line) for line in await feed.run_events(run_id)]
            assert [one["type"] for one in found if one["type"] == "step"] == ["step"] * (
                len(events) - 2
            )
        fresh = KafkaFeed(settings)
        async with started(fresh):
            assert await fresh.picture("looping") == await feed.picture("looping")
        assert {len(one.steps) for one in (await feed.known()).references} == {1}
        with pytest.raises(Unavailable, match="'nobody'"):
            await feed.picture("nobody")
    assert await groups(settings) == before


@pytest.mark.kafka
async def test_the_kafka_feed_is_live_only_once_it_has_read_what_stood_there(
    settings: Settings,
) -> None:
    count = 5_000  # more than is read at once
    lines = [codecs.encode(verdict("r", seq)) for seq in range(count)]
    await produce(settings, topics_of(settings).verdicts.name, [(b"r", line) for line in lines])
    feed = KafkaFeed(settings)
    states: list[FeedState] = []

    def said(_output: Output, _time_ms: int) -> None:
        states.append(feed.state)

    await feed.start(said)
    try:
        await until_it_is(feed, "live")
        assert len(states) == count
    finally:
        await feed.stop()
    assert {state.status for state in states} == {"connecting"}
    assert f"of {count:,} messages" in states[-1].text


async def looked_at(topic: RunTopic, run_id: str) -> int:
    """How many messages are looked at to show a run."""
    before = topic.messages
    with suppress(Unavailable):
        await topic.picture(run_id)
    return topic.messages - before


@pytest.mark.kafka
async def test_a_run_that_is_not_there_is_looked_for_once_and_then_among_what_is_new(
    settings: Settings,
) -> None:
    name = topics_of(settings).events.name
    steps = [Step(run_id=f"r{n % 9}", seq=n // 9, tool="look", result=n) for n in range(90)]
    lines = [(step.run_id.encode(), codecs.encode(step)) for step in steps]
    await produce(settings, name, lines)
    log = LogReader(settings)
    topic = RunTopic(settings, log)
    try:
        assert await looked_at(topic, "late") == len(lines)
        assert await looked_at(topic, "late") == 0
        late = Step(run_id="late", seq=0, tool="look", result=1)
        await produce(settings, name, [(b"late", codecs.encode(late))])
        assert await looked_at(topic, "late") == 1
        assert [json.loads(line)["run_id"] for line in await topic.events("late")] == ["late"]
        # Its events are found again, those of before as well.
        found = [json.loads(line)["seq"] for line in await topic.events("r3")]
        assert found == list(range(10))
        assert [json.loads(line)["seq"] for line in await topic.events("r3")] == found
    finally:
        await topic.stop()
        await log.stop()


@pytest.mark.kafka
async def test_a_large_partition_is_read_for_as_long_as_it_goes_on_and_the_page_is_told(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = settings.model_copy(
        update={"topic_prefix": settings.topic_prefix + "one.", "partitions": 1}
    )
    await provision(one)
    name = topics_of(one).events.name
    for run_id in ("big", "long"):
        steps = [Step(run_id=run_id, seq=n, tool="look", result=n) for n in range(8)]
        await produce(one, name, [(run_id.encode(), codecs.encode(step)) for step in steps])
    monkeypatch.setattr(feed_kafka, "ANSWER_S_MAX", 1.0)
    whole = LogReader.read

    async def slowly(self: LogReader, *where: Any) -> AsyncIterator[list[ConsumerRecord]]:
        async for batch in whole(self, *where):
            for message in batch:
                yield [message]
                if where[0] == name:
                    await asyncio.sleep(0.3)

    monkeypatch.setattr(LogReader, "read", slowly)
    feed = KafkaFeed(one)
    async with started(feed):
        await until_it_is(feed, "live")
        assert feed.reading("big") == ""
        asking = asyncio.create_task(feed.picture("big"))
        await until(lambda: feed.reading("big").startswith("reading partition 0 of"))
        assert "of 16 messages" in feed.reading("big")
        assert len((await asking).timeline) == 8
        assert feed.reading("big") == ""

        # Folding may take longer than that as well.
        quickly = RunFold.feed

        def heavily(self: RunFold, records: Iterable[Record]) -> list[Output]:
            time.sleep(0.3)
            return quickly(self, records)

        monkeypatch.setattr(LogReader, "read", whole)
        monkeypatch.setattr(RunFold, "feed", heavily)
        asking = asyncio.create_task(feed.picture("long"))
        await until(lambda: feed.reading("long").endswith("of 8 events"))
        assert len((await asking).timeline) == 8

        async def never(*_: Any) -> AsyncIterator[list[ConsumerRecord]]:
            await asyncio.sleep(60)
            yield []

        monkeypatch.setattr(LogReader, "read", never)
        with pytest.raises(Unavailable, match="no answer"):
            await feed.run_events("big")


@pytest.mark.kafka
async def test_the_kafka_feed_begins_no_further_back_than_asked_for(settings: Settings) -> None:
    topics = topics_of(settings)
    lines = [codecs.encode(verdict("old", seq)) for seq in range(3)]
    await produce(settings, topics.verdicts.name, [(b"old", line) for line in lines])
    await asyncio.sleep(0.01)
    feed = KafkaFeed(settings, back_minutes=0.0)
    async with started(feed) as listener:
        await until_it_is(feed, "live")
        await produce(
            settings,
            topics.verdicts.name,
            [(b"new", b"no output"), (b"new", None), (b"new", codecs.encode(verdict("new", 0)))],
        )
        await until(lambda: "new:0" in listener.lines)
        assert listener.lines.keys() == {"new:0"}


@pytest.mark.kafka
async def test_the_kafka_feed_gives_the_latest_dead_letters_first(settings: Settings) -> None:
    topic = topics_of(settings).dead_letters.name
    for number in range(5):
        line = codecs.encode(dead_letter(number, size=20_000))
        await produce(settings, topic, [(f"k{number}".encode(), line)] * 2)
        await asyncio.sleep(0.005)
    feed = KafkaFeed(settings)
    async with started(feed):
        found = await feed.dead_letters(3)
        assert [letter.said.offset for letter in found] == [4, 3, 2]
        assert isinstance(found[0].said, DeadLetter)
        assert len(found[0].said.value_base64 or "") == LETTER_CHARACTERS_MAX
        times = [letter.time_ms for letter in found]
        assert times == sorted(times, reverse=True)
        assert abs(times[0] - time.time() * 1_000) < 600_000, "the broker's time of the message"
        assert await feed.dead_letters(0) == []


@pytest.mark.kafka
async def test_dead_letters_are_read_once_however_often_a_page_asks(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics_of(settings).dead_letters.name
    lines = [codecs.encode(dead_letter(number, size=100_000)) for number in range(30)]
    await produce(settings, topic, [(b"k", line) for line in lines])
    asked: list[int] = []
    whole = LogReader.read

    async def counted(self: LogReader, *where: Any) -> AsyncIterator[list[ConsumerRecord]]:
        async for batch in whole(self, *where):
            asked.extend(message.offset for message in batch if where[0] == topic)
            yield batch

    monkeypatch.setattr(LogReader, "read", counted)
    feed = KafkaFeed(settings)
    async with started(feed):
        assert len(await feed.dead_letters(3)) == 3
        assert len(await feed.dead_letters(200)) == 30
        await produce(settings, topic, [(b"k", codecs.encode(dead_letter(77)))])
        assert (await feed.dead_letters(200))[0].said.offset == 77
    assert asked == list(range(31))


@pytest.mark.kafka
async def test_the_loop_is_not_held_up_while_a_feed_reads_what_stood_there(
    settings: Settings,
) -> None:
    lines = [codecs.encode(verdict("r", seq)) for seq in range(2_000)]
    await produce(settings, topics_of(settings).verdicts.name, [(b"r", line) for line in lines])
    told = at_most = since = 0

    def said(_output: Output, _time_ms: int) -> None:
        nonlocal told, since, at_most
        told, since = told + 1, since + 1
        at_most = max(at_most, since)

    feed = KafkaFeed(settings)
    await feed.start(said)
    try:
        async with asyncio.timeout(WAIT_S):
            while told < len(lines):
                await asyncio.sleep(0)
                since = 0
    finally:
        await feed.stop()
    assert at_most <= 100, "others have their turn after so many outputs"


@pytest.mark.kafka
async def test_events_from_the_topic_are_redacted_before_they_are_given(
    settings: Settings,
) -> None:
    hidden = settings.model_copy(update={"redact": ("args.card",)})
    topic = topics_of(settings).events.name
    step = Step(run_id="r", seq=0, tool="pay", args={"card": "4111"})
    await produce(settings, topic, [(b"r", codecs.encode(step)), (b"r", b"not an event")])
    feed = KafkaFeed(hidden)
    async with started(feed):
        (line,) = await feed.run_events("r")
        assert b"4111" not in line
        picture = await feed.picture("r")
        assert "1 of its events could not be used" in picture.notes[0]


async def widen(settings: Settings, count: int) -> None:
    """Give every topic that has as many partitions as events ``count`` of them."""
    before = await partition_counts(settings)
    events = before[topics_of(settings).events.name]
    admin = await start_admin(settings)
    try:
        wide = {name: NewPartitions(count) for name in before if before[name] == events}
        answer = await admin.create_partitions(wide)
        assert [error for error in answer.topic_errors if error[1]] == []
    finally:
        await admin.close()


async def say_in(settings: Settings, topic: str, partition: int, *lines: bytes) -> None:
    """Produce to a partition by its number, once it can be written to."""
    async with AIOKafkaProducer(bootstrap_servers=settings.broker) as producer:
        async with asyncio.timeout(WAIT_S):
            while partition not in await producer.partitions_for(topic):
                await producer.client.force_metadata_update()
        for line in lines:
            await producer.send_and_wait(topic, line, key=b"r", partition=partition)


@pytest.mark.kafka
async def test_partitions_that_are_added_while_it_runs_are_followed_from_their_beginning(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_kafka, "LOOK_S", 0.2)
    monkeypatch.setattr(run_topic, "LOOK_S", 0.2)
    topics = topics_of(settings)
    feed = KafkaFeed(settings, back_minutes=0.0)
    async with started(feed) as listener:
        await until_it_is(feed, "live")
        await say_in(settings, topics.verdicts.name, 0, codecs.encode(verdict("old", 0)))
        await until(lambda: "old:0" in listener.lines)
        with pytest.raises(Unavailable):
            await feed.picture("r")
        await widen(settings, 9)
        for seq in range(2):
            await say_in(settings, topics.verdicts.name, 8, codecs.encode(verdict("new", seq)))
        await until(lambda: "new:1" in listener.lines)
        await say_in(settings, topics.verdicts.name, 0, codecs.encode(verdict("old", 1)))
        await until(lambda: "old:1" in listener.lines)
        assert [one.id for one, _ in listener.said] == ["old:0", "new:0", "new:1", "old:1"]
        step = codecs.encode(Step(run_id="r", seq=0, tool="look", result=1))
        await say_in(settings, topics.events.name, 8, step)
        assert len((await feed.picture("r")).timeline) == 1


@pytest.mark.kafka
async def test_a_look_for_partitions_that_fails_is_left_for_the_next(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_kafka, "LOOK_S", 0.1)
    feed = KafkaFeed(settings)
    async with started(feed) as listener:
        await until_it_is(feed, "live")
        failed = [0]

        async def away(_settings: Settings, *_names: str) -> dict[str, int]:
            failed[0] += 1
            raise BrokerUnavailable("no admin today")

        monkeypatch.setattr(feed_kafka, "counts_of", away)
        await until(lambda: failed[0] > 1)
        await say_in(settings, topics_of(settings).verdicts.name, 0, codecs.encode(verdict("r", 0)))
        await until(lambda: "r:0" in listener.lines)
        assert feed.state.status == "live"


@pytest.mark.kafka
async def test_the_kafka_feed_says_which_topics_are_missing(broker: str, fresh_prefix: str) -> None:
    settings = settings_for(broker, fresh_prefix)
    feed = KafkaFeed(settings)
    async with started(feed):
        await until_it_is(feed, "down")
        assert "ontrack topics create" in feed.state.text
        await provision(settings)
        await until_it_is(feed, "live")


@pytest.mark.kafka
async def test_the_kafka_feed_is_down_while_the_broker_is_and_goes_on_where_it_was(
    own_broker: LocalBroker, fresh_prefix: str
) -> None:
    settings = settings_for(own_broker.address, fresh_prefix)
    await provision(settings)
    topic = topics_of(settings).verdicts.name

    async def say(run_id: str, count: int) -> None:
        lines: list[tuple[bytes | None, bytes | None]] = [
            (run_id.encode(), codecs.encode(verdict(run_id, seq))) for seq in range(count)
        ]
        await produce(settings, topic, lines)

    feed = KafkaFeed(settings)
    async with started(feed) as listener:
        await say("one", 5)
        await until(lambda: len(listener.said) == 5)
        await asyncio.to_thread(own_broker.kill)
        await until_it_is(feed, "down")
        assert settings.broker in feed.state.text
        with pytest.raises(Unavailable, match=settings.broker.partition(":")[0]):
            await feed.picture("one")
        await asyncio.to_thread(own_broker.start)
        await until_it_is(feed, "live")
        await say("two", 5)
        await until(lambda: "two:4" in listener.lines)
        # Nothing is missing, and nothing came twice.
        assert [one.id for one, _ in listener.said] == [
            *(f"one:{seq}" for seq in range(5)),
            *(f"two:{seq}" for seq in range(5)),
        ]
