"""The stream of outputs: as they come, to many readers, none of whom can hold up anything."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ontrack.pipeline.serving import stream as stream_module
from ontrack.pipeline.serving.stream import READERS_MAX, Stream, TooManyReaders
from ontrack.topics import codecs
from ontrack.topics.events import RunEnded, Step
from tests.pipeline.dashboard.said import dead_letter, verdict
from tests.pipeline.serving.served import served

START = datetime(2026, 3, 1, 12, 0, 0, 250_000, UTC)


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


def never() -> None:
    raise AssertionError("nobody is to be cut off")


async def lines(reader: stream_module.Reader, count: int) -> list[dict[str, Any]]:
    """The next so many lines."""
    found: list[dict[str, Any]] = []
    async for chunk in reader.chunks(lambda: b'{"type": "silence"}\n'):
        found += [json.loads(line) for line in chunk.splitlines()]
        if len(found) >= count:
            return found
    return found


async def test_a_reader_gets_outputs_with_the_bytes_of_the_topic_and_the_time_before_them() -> None:
    clock = Clock()
    stream = Stream(clock)
    reader = stream.join(0, never)
    stream.said(verdict("r", 0))
    clock.now += timedelta(seconds=0.5)
    stream.said(verdict("r", 1))
    clock.now += timedelta(seconds=1)
    stream.said(verdict("r", 2))
    chunk = await anext(aiter(reader.chunks(stream.heartbeat)))
    found = chunk.splitlines()
    kinds = [json.loads(line)["type"] for line in found]
    # One when it began, then one for each second in which something was said.
    assert kinds == ["heartbeat", "heartbeat", "verdict", "verdict", "heartbeat", "verdict"]
    assert found[2] == codecs.encode(verdict("r", 0))
    assert json.loads(found[4])["time"] == "2026-03-01T12:00:01.750+00:00"


async def test_one_who_comes_late_gets_the_last_ones_if_asked_for() -> None:
    stream = Stream(Clock())
    for seq in range(5):
        stream.said(verdict("r", seq))
    for wanted, seqs in ((0, []), (2, [3, 4]), (99, [0, 1, 2, 3, 4])):
        reader = stream.join(wanted, never)
        reader.end(at_once=False)
        found = await lines(reader, 99)
        assert [one["seq"] for one in found if one["type"] == "verdict"] == seqs


async def test_where_nothing_comes_a_heartbeat_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "HEARTBEAT_S", 0.01)
    reader = Stream(Clock()).join(0, never)
    assert [one["type"] for one in await lines(reader, 3)] == ["heartbeat", "silence", "silence"]


def test_a_reader_that_does_not_read_is_cut_off_and_counted_and_the_other_goes_on() -> None:
    stream = Stream(Clock())
    cut: list[str] = []
    stream.join(0, lambda: cut.append("slow"))
    letter = dead_letter(1, size=1_000_000)
    count = stream_module.READER_BYTES_MAX // len(codecs.encode(letter)) + 1
    for _ in range(count):
        assert (cut, stream.dropped) == ([], 0)
        stream.said(letter)
    assert (cut, stream.dropped, stream.readers) == (["slow"], 1, 0)
    stream.join(5, never)
    assert stream.readers == 1


def test_what_is_kept_for_later_readers_is_bounded() -> None:
    stream = Stream(Clock())
    for number in range(60):
        stream.said(dead_letter(number, size=400_000))
    stream.said(dead_letter(99, size=5_000_000))
    held = sum(len(line) for _, line in stream._recent)
    assert stream._recent_bytes == held <= stream_module.RECENT_BYTES_MAX
    for seq in range(stream_module.RECENT_MAX + 10):
        stream.said(verdict("r", seq))
    assert len(stream._recent) <= stream_module.RECENT_MAX
    assert stream._recent_bytes == sum(len(line) for _, line in stream._recent)


def test_not_more_than_so_many_may_read() -> None:
    stream = Stream(Clock())
    readers = [stream.join(0, never) for _ in range(READERS_MAX)]
    with pytest.raises(TooManyReaders, match=str(READERS_MAX)):
        stream.join(0, never)
    stream.leave(readers[0])
    stream.join(0, never)


def steps(run_id: str, count: int) -> list[Step]:
    return [Step(run_id=run_id, seq=n, tool="look", args={"n": n}) for n in range(count)]


async def post(http: aiohttp.ClientSession, url: str, *events: Step | RunEnded) -> dict[str, Any]:
    body = b"\n".join(codecs.encode(event) for event in events)
    async with http.post(url + "/v1/events", data=body) as answer:
        return dict(await answer.json())


async def test_the_daemon_streams_what_it_prints_and_ends_the_stream_when_it_stops(
    tmp_path: Path,
) -> None:
    with served(tmp_path) as daemon:
        async with aiohttp.ClientSession() as http, asyncio.timeout(60):
            await post(http, daemon.url, *steps("early", 2))
            async with http.get(daemon.url + "/v1/stream?recent=1") as answer:
                assert answer.content_type == "application/x-ndjson"
                assert answer.headers["Cache-Control"] == "no-store"
                told = await post(http, daemon.url, *steps("now", 3), RunEnded(run_id="now"))
                found: list[bytes] = []
                async for line in answer.content:
                    if b'"heartbeat"' not in line:
                        found.append(line)
                    if b'"scorecard"' in line:
                        daemon.process.terminate()
            assert [json.loads(line) for line in found[1:]] == told["outputs"]
            assert json.loads(found[0])["id"] == "early:1"
        assert daemon.process.wait(timeout=30) == 0
        assert [json.loads(line) for line in found] == daemon.outputs()[1:]


async def test_a_bad_address_is_refused(tmp_path: Path) -> None:
    with served(tmp_path) as daemon:
        async with aiohttp.ClientSession() as http:
            async with http.get(daemon.url + "/v1/stream?recent=-1") as answer:
                assert answer.status == 400
                assert "recent" in (await answer.json())["text"]
            for page in ("events", "picture"):
                async with http.get(f"{daemon.url}/v1/runs/nobody/{page}") as answer:
                    assert answer.status == 404
                    assert "nobody" in (await answer.json())["text"]


async def test_the_events_of_a_run_are_those_of_the_recording_and_redacted(tmp_path: Path) -> None:
    recording = tmp_path / "events.jsonl"
    hidden = {"ONTRACK_REDACT": "args.card", "ONTRACK_REDACT_KEY": "k" * 20}
    event = Step(run_id="a b/c", seq=0, tool="pay", args={"card": "4111-1111", "n": 1})
    with served(tmp_path, "--record", str(recording), **hidden) as daemon:
        async with aiohttp.ClientSession() as http:
            await post(http, daemon.url, event, *steps("other", 1))
            async with http.get(daemon.url + "/v1/runs/a%20b%2Fc/events") as answer:
                held = await answer.read()
            assert held == recording.read_bytes().splitlines(keepends=True)[0]
            assert b"4111" not in held
            assert b'"n":1' in held
    # Started again with the same file, it holds what it held.
    with served(tmp_path, "--record", str(recording), **hidden) as daemon:
        url = daemon.url + "/v1/runs/a%20b%2Fc/events"
        async with aiohttp.ClientSession() as http, http.get(url) as answer:
            assert await answer.read() == held


async def test_beyond_loopback_nothing_is_told_without_the_token(tmp_path: Path) -> None:
    with served(tmp_path, "--host", "0.0.0.0", ONTRACK_WEB_TOKEN="s3cret") as daemon:
        url = daemon.url.replace("0.0.0.0", "127.0.0.1")
        async with aiohttp.ClientSession() as http:
            for path in ("stream", "knowledge", "runs/r/events", "runs/r/picture"):
                async with http.get(f"{url}/v1/{path}") as answer:
                    assert answer.status == 401


async def test_one_who_connects_and_does_not_read_is_cut_off_and_holds_up_nobody(
    tmp_path: Path,
) -> None:
    with served(tmp_path) as daemon:
        host, _, port = daemon.url.partition("://")[2].partition(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1024)
        writer.write(f"GET /v1/stream HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        await writer.drain()
        async with (
            aiohttp.ClientSession() as http,
            asyncio.timeout(90),
            http.get(daemon.url + "/v1/stream") as answer,
        ):
            metrics = ""
            while "ontrack_stream_dropped_total 1.0" not in metrics:
                async with http.post(daemon.url + "/v1/events", data=b"x" * 1_000_000) as refused:
                    assert refused.status == 400
                async with http.get(daemon.url + "/metrics") as page:
                    metrics = await page.text()
                # The other reader has been told of it by then.
                while b'"dead_letter"' not in await _line(answer.content):
                    pass
        writer.close()


async def _line(content: aiohttp.StreamReader) -> bytes:
    """The beginning of the next line, however long it is."""
    found = b""
    while True:
        chunk, _ = await content.readchunk()
        found += chunk
        if found.endswith(b"\n"):
            return found[:1000] + found[-1000:]
