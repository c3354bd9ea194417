r"""Header names that are not UTF-8: read all the same.

aiokafka decodes the names of headers strictly, and a name that is not UTF-8 ends its fetcher: one
message would stop every reader of its partition for good. Kafka itself does not look at names, and
some clients send any bytes. Here such a name is read with its bytes as ``\xNN``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from aiokafka.consumer import fetcher
from aiokafka.record import default_records, memory_records


class _Forgiving(bytearray):
    """Bytes whose slices can always be decoded."""

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return _Forgiving(found) if isinstance(place, slice) else found

    def decode(self, encoding: str = "utf-8", errors: str = "") -> str:
        return super().decode(encoding, "backslashreplace")


class _ForgivingBatch(default_records._DefaultRecordBatchPy):  # type: ignore[misc]
    def _maybe_uncompress(self) -> None:
        super()._maybe_uncompress()
        self._buffer: bytearray = _Forgiving(self._buffer)


class _Batch:
    """A batch as aiokafka reads it; where it cannot, by its slower reader, that forgives."""

    def __init__(self, batch: Any, raw: memoryview) -> None:
        self._batch = batch
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)

    def __iter__(self) -> Iterator[Any]:
        count = 0
        try:
            for record in self._batch:
                count += 1
                yield record
        except UnicodeDecodeError:
            yield from islice(_ForgivingBatch(self._raw), count, None)


class _Records(memory_records._MemoryRecordsPy):  # type: ignore[misc]
    def next_batch(self) -> Any:
        raw = self._next_slice
        batch = super().next_batch()
        return None if batch is None else _Batch(batch, raw)


def read_any_header_name() -> None:
    """Let all consumers of this process read header names that are not UTF-8."""
    assert hasattr(fetcher, "MemoryRecords"), "this aiokafka reads its records elsewhere"
    fetcher.MemoryRecords = _Records
