"""What commands write into files that the user names."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from ontrack.topics.errors import InvalidFile

STDOUT: Final = "-"


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """Open for writing; a file appears when it is whole, so it may be one that is being read.

    Parameters
    ----------
    path
        ``-`` is standard output; what is there and is no plain file (a pipe, a terminal) is written
        to as it is.

    Raises
    ------
    InvalidFile
        It cannot be written.
    """
    if path == STDOUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    target = Path(path)
    if target.exists() and not target.is_file():
        with _cannot_be_written(path), target.open("wb") as device:
            yield device
        return
    target = Path(os.path.realpath(target))  # a link stays one
    with _cannot_be_written(path):
        number, name = tempfile.mkstemp(prefix=f".{target.name[:200]}.", dir=target.parent)
    try:
        with os.fdopen(number, "wb") as out:
            yield out
        with _cannot_be_written(path):
            Path(name).chmod(_mode(target))
            Path(name).replace(target)
    finally:
        Path(name).unlink(missing_ok=True)


def write_text(path: str, text: str) -> None:
    """Write one text, as :func:`opened` does; half a surrogate pair becomes a question mark.

    Raises
    ------
    InvalidFile
        It cannot be written.
    """
    with opened(path) as out:
        out.write(text.encode("utf-8", "replace"))


def _mode(target: Path) -> int:
    """Return the permissions of the file that was there, or those that a new file gets."""
    if target.exists():
        return target.stat().st_mode & 0o777
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


@contextmanager
def _cannot_be_written(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidFile(path, None, f"cannot be written: {error.strerror}") from error
