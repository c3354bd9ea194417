"""A recording is whole lines, each of them whole, whatever happens while it is written."""

from __future__ import annotations

import errno
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.pipeline.serving.recording import Recording
from ontrack.topics.errors import InvalidFile


class Disk(io.FileIO):
    """A file on a disk that has so much room."""

    room = 0

    def write(self, data: Any) -> int:
        part = bytes(data)[: self.room]
        if not part:
            raise OSError(errno.ENOSPC, "No space left on device")
        type(self).room -= len(part)
        return super().write(part)


def _numbers(path: Path) -> list[int]:
    return [json.loads(line)["n"] for line in path.read_bytes().splitlines()]


@given(rooms=st.lists(st.integers(0, 60), min_size=1, max_size=12))
def test_what_a_full_disk_took_of_a_line_spoils_no_other(
    tmp_path_factory: pytest.TempPathFactory, rooms: list[int]
) -> None:
    path = tmp_path_factory.mktemp("disk") / "events.jsonl"
    recording = Recording(str(path))
    recording.append(b'{"n": 0}')
    recording._file.close()
    recording._file = Disk(path, "ab+")
    lines = [json.dumps({"n": n, "text": "x" * 20}).encode() for n in range(1, len(rooms) + 1)]
    for line, room in zip(lines, rooms, strict=True):
        Disk.room = room
        recording.append(line)
    Disk.room = 1000
    recording.append(b'{"n": 99}')
    recording.close()
    fits = [room > len(line) for line, room in zip(lines, rooms, strict=True)]
    kept = [number for number, fit in enumerate(fits, 1) if fit]
    assert _numbers(path) == [0, *kept, 99]


def test_two_processes_do_not_record_into_one_file(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    first = Recording(str(path))
    with pytest.raises(InvalidFile, match="another process"):
        Recording(str(path))
    first.append(b'{"n": 1}')
    first.close()
    Recording(str(path)).close()
    assert _numbers(path) == [1]
