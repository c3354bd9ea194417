"""Recording: every event that was taken, appended to a file that ``ontrack replay`` reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import structlog

from ontrack.topics.errors import InvalidFile

_log = structlog.get_logger(__name__)


class Recording:
    """A file of events, one a line.

    A process that was killed may have left half a line; it is cut off when the file is opened.

    Parameters
    ----------
    path
        Made where there is none.

    Raises
    ------
    InvalidFile
        The file cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._failed = False
        try:
            # Arguments and results stand in it: nobody else shall read them.
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
            self._file: IO[bytes] = os.fdopen(os.open(path, flags, 0o600), "ab+")
        except OSError as error:
            raise InvalidFile(
                path, None, f"cannot be opened for recording: {error.strerror}"
            ) from None
        self._cut_half_a_line()

    def lines(self) -> Iterator[bytes]:
        """Yield what was recorded before."""
        with self._path.open("rb") as file:
            yield from file

    def append(self, value: bytes) -> None:
        """Append an event; a full disk is logged, once, and stops nobody."""
        line = b"".join(value.splitlines()) + b"\n"
        try:
            self._file.write(line)
            self._file.flush()
            self._failed = False
        except OSError as error:
            if not self._failed:
                _log.error("recording_failed", path=str(self._path), error=error.strerror)
            self._failed = True

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _cut_half_a_line(self) -> None:
        size = self._file.seek(0, 2)
        keep = size
        while keep > 0:
            begin = max(0, keep - 65_536)
            self._file.seek(begin)
            found = self._file.read(keep - begin).rfind(b"\n")
            if found >= 0:
                keep = begin + found + 1
                break
            keep = begin
        if keep != size:
            _log.warning("half_a_line_cut", path=str(self._path), bytes=size - keep)
            self._file.truncate(keep)
