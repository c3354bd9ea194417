"""Spans and a monitor that is away for a while: no step is lost, none is told twice."""

from __future__ import annotations

import json
from typing import Any

from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.metrics import Metrics
from ontrack.pipeline.serving.daemon import INLINE_BYTES_MAX, Daemon
from ontrack.pipeline.serving.engine import EmbeddedEngine, Listener
from ontrack.pipeline.settings import Settings
from ontrack.topics.errors import BrokerUnavailable
from ontrack.topics.verdicts import DeadLetter, Output, Verdict


class Shaky(EmbeddedEngine):
    """A monitor that can be cut off."""

    away_after: int | None = None

    async def take(self, value: bytes, run_id: str | None, source: str) -> tuple[Output, ...]:
        if self.away_after is not None:
            if self.away_after == 0:
                raise BrokerUnavailable("Kafka is away")
            self.away_after -= 1
        return await super().take(value, run_id, source)


class House:
    def __init__(self) -> None:
        self.said: list[Output] = []
        settings = Settings(encoder="hashing", serve_spans_s=0)

        def engine(metrics: Metrics, listener: Listener) -> Shaky:
            self.engine = Shaky(EmbeddedMonitor(settings), 60.0, listener)
            return self.engine

        self.daemon = Daemon(settings, engine, [self.said.append])

    async def post(self, *calls: int, result: str = "") -> int:
        answer = await self.daemon.take_spans(document(*calls, result=result), JSON, None)
        return answer.status

    @property
    def seqs(self) -> list[int]:
        return [output.seq for output in self.said if isinstance(output, Verdict)]


JSON = "application/json"
TRACE = "a" * 32


def document(*calls: int, result: str = "") -> bytes:
    spans = [
        {
            "traceId": TRACE,
            "spanId": f"{call + 1:016x}",
            "name": "execute_tool look",
            "startTimeUnixNano": str(10**18 + call),
            "endTimeUnixNano": str(10**18 + call + 1),
            "attributes": [
                text("gen_ai.operation.name", "execute_tool"),
                text("gen_ai.tool.name", "look"),
                text("gen_ai.conversation.id", "talk"),
                text("gen_ai.tool.call.result", f"{call} {result}"),
            ],
        }
        for call in calls
    ]
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()


def text(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value}}


async def test_what_could_not_be_handed_on_is_handed_on_when_it_can_be() -> None:
    house = House()
    house.engine.away_after = 2
    assert await house.post(0, 1, 2, 3) == 503
    assert house.seqs == [0, 1]
    assert await house.post(0, 1, 2, 3) == 503, "an exporter sends it again"
    house.engine.away_after = None
    assert await house.post(0, 1, 2, 3) == 200
    assert await house.post(4) == 200
    assert house.seqs == [0, 1, 2, 3, 4]
    view = house.daemon.board.get("talk")
    assert view is not None
    assert view.steps == 5


async def test_a_large_request_is_read_in_a_thread_with_the_same_result() -> None:
    house = House()
    assert await house.post(0, 1, 2, result="x" * INLINE_BYTES_MAX) == 200
    assert house.seqs == [0, 1, 2]


async def test_a_request_that_cannot_be_read_is_kept_with_its_bytes() -> None:
    house = House()
    answer = await house.daemon.take_spans(b"\x00\x01", "application/x-protobuf", None)
    assert answer.status == 400
    (letter,) = house.said
    assert isinstance(letter, DeadLetter)
    assert (letter.topic, letter.value_base64) == ("http:/v1/traces", "AAE=")
    assert b'ontrack_dead_letters_total{error="' in house.daemon.metrics.text()
