"""Whatever a sender put into a batch is read: any codec of Kafka, any bytes as a header's name."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.consumer import fetcher
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.pipeline.kafka import connection

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
Header = tuple[bytes, bytes | None]
Message = tuple[bytes | None, bytes | None, list[Header]]


class AnyBytes(str):
    """A header's name as other clients send it: bytes, of whatever kind."""

    raw: bytes

    def __new__(cls, raw: bytes) -> AnyBytes:
        made = super().__new__(cls, "x")
        made.raw = raw
        return made

    def encode(self, *_: Any, **__: Any) -> bytes:
        return self.raw


def batch_of(messages: list[Message], codec: int) -> bytes:
    builder = _DefaultRecordBatchBuilderPy(2, codec, 0, -1, -1, -1, 1 << 20)
    for offset, (key, value, headers) in enumerate(messages):
        named = [(AnyBytes(name), content) for name, content in headers]
        assert builder.append(offset, timestamp=5, key=key, value=value, headers=named)
    return bytes(builder.build())


def read(raw: bytes) -> list[tuple[Any, ...]]:
    """What a consumer of this process makes of bytes from a broker."""
    assert connection.REQUEST_BYTES_MAX  # whoever connects has imported it
    records, found = fetcher.MemoryRecords(raw), []
    while records.has_next():
        batch = records.next_batch()
        assert batch.validate_crc()
        found += [(item.offset, item.key, item.value, item.headers) for item in batch]
    return found


def expected(messages: list[Message]) -> list[tuple[Any, ...]]:
    return [
        (
            offset,
            key,
            value,
            [(name.decode("utf-8", "backslashreplace"), content) for name, content in headers],
        )
        for offset, (key, value, headers) in enumerate(messages)
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_a_name_that_is_not_utf8_is_read_with_its_bytes_and_stops_nothing_after_it(
    codec: str,
) -> None:
    usual: Message = (b"k", b"v0", [("é".encode(), None)])
    odd: Message = (b"k", b"v1", [(b"\xff\xfe!", b"v")])
    messages = [usual, odd, usual]
    assert read(batch_of(messages, CODECS[codec]) * 2) == expected(messages) * 2
    assert expected([odd])[0][3] == [("\\xff\\xfe!", b"v")]


optional = st.none() | st.binary(max_size=20)
any_messages = st.lists(
    st.tuples(optional, optional, st.lists(st.tuples(st.binary(max_size=8), optional), max_size=3)),
    min_size=1,
    max_size=5,
)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(any_messages, st.sampled_from(sorted(CODECS))), max_size=3))
def test_whatever_headers_and_codecs_senders_use_every_message_is_read(
    batches: list[tuple[list[Message], str]],
) -> None:
    raw = b"".join(batch_of(messages, CODECS[codec]) for messages, codec in batches)
    assert read(raw) == [message for messages, _ in batches for message in expected(messages)]
