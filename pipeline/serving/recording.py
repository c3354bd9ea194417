"""Recording: every event that was taken, appended to a file that ``ontrack replay`` reads."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import structlog

from ontrack.topics.errors import InvalidFile

_log = structlog.get_logger(__name__)


class Recording:
    """A file of events, one a line.

    A process that was killed may have left half a line; it is cut off when the file is opened. So
    is what a full disk takes of a line, before the next one.

    Parameters
    ----------
    path
        Made where there is none.

    Raises
    ------
    InvalidFile
        The file cannot be opened, or another process records into it.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._failed = False
        try:
            # Arguments and results stand in it: nobody else shall read them.
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
            # Unbuffered: what could not be written must not turn up later.
            self._file = os.fdopen(os.open(path, flags, 0o600), "ab+", buffering=0)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise InvalidFile(
                path, None, "another process records into it; name another file"
            ) from None
        except OSError as error:
            raise InvalidFile(
                path, None, f"cannot be opened for recording: {error.strerror}"
            ) from None
        self._end = self._cut_half_a_line()

    def lines(self) -> Iterator[bytes]:
        """Yield what was recorded before."""
        with self._path.open("rb") as file:
            yield from file

    def append(self, value: bytes) -> None:
        """Append an event; a full disk is logged, once, and stops nobody."""
        line = b"".join(value.splitlines()) + b"\n"
        try:
            if self._failed:
                self._file.truncate(self._end)
            left = line
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            if not self._failed:
                _log.error("recording_failed", path=str(self._path), error=error.strerror)
            self._failed = True
        else:
            self._end += len(line)
            self._failed = False

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _cut_half_a_line(self) -> int:
        """Return the file's size after it."""
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
        return keep
