"""Where bytes come from: files, folders, globs and stdin, compressed or not."""

from __future__ import annotations

import glob
import io
import lzma
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import zstandard

from ontrack.pipeline.reading import otlp_files
from ontrack.pipeline.reading.eval_archive import MAGICS, BadArchive, samples
from ontrack.topics.errors import InvalidEvent, InvalidFile

STDIN: Final = "-"
#: What is looked for in folders, each also with a suffix of compression.
SUFFIXES: Final = (".traj.json", ".traj", ".jsonl", ".ndjson", ".json", ".eval", ".binpb")
LINE_BYTES_MAX: Final = 512 * 1_048_576

# Small, since one chunk is inflated at once: text that repeats itself shrinks a hundredfold.
_CHUNK_BYTES = 2_048
_BUFFER_BYTES = 131_072
_HEAD_BYTES = 256
_DAMAGE = (lzma.LZMAError, zlib.error, zstandard.ZstdError, EOFError)


class _Compression(NamedTuple):
    suffix: str
    magic: bytes
    decompressor: Callable[[], Any]


_COMPRESSIONS = (
    _Compression(".xz", b"\xfd7zXZ\x00", lzma.LZMADecompressor),
    _Compression(".gz", b"\x1f\x8b", lambda: zlib.decompressobj(wbits=31)),
    _Compression(".zst", b"\x28\xb5\x2f\xfd", lambda: zstandard.ZstdDecompressor().decompressobj()),
)


class Source(NamedTuple):
    """One thing to read.

    Parameters
    ----------
    path : str
        As the user named it, or found in a folder; ``-`` is stdin.
    stdin : BinaryIO or None
        What to read for ``-`` instead of the process's stdin.
    """

    path: str
    stdin: BinaryIO | None = None

    @property
    def stem(self) -> str:
        """Return the file's name without suffixes: ``runs/a.jsonl.xz`` is ``a``."""
        if self.path == STDIN:
            return "stdin"
        name = _uncompressed_name(self.path)
        for suffix in SUFFIXES:
            if name.endswith(suffix) and name != suffix:
                return name.removesuffix(suffix)
        return name

    @contextmanager
    def open(self) -> Iterator[io.BufferedReader]:
        """Open for reading, decompressed by what the bytes are or the suffix says.

        Raises
        ------
        InvalidFile
            It cannot be read, now or later, or its compressed data is damaged or cut short.
        """
        try:
            if self.path == STDIN:
                # Never closed: it belongs to whoever started us.
                yield _decompressed(self.stdin or sys.stdin.buffer, self.path)
            else:
                with open(self.path, "rb") as raw:
                    yield _decompressed(raw, self.path)
        except OSError as error:
            reason = error.strerror or str(error)
            raise InvalidFile(self.path, None, f"cannot be read: {reason}") from error
        except _DAMAGE as error:
            raise InvalidFile(
                self.path, None, f"the compressed data is damaged or cut short ({error})"
            ) from error

    def read(self) -> bytes:
        """Read everything. Raises :class:`InvalidFile` as :meth:`open`, or when it is too long."""
        with self.open() as stream:
            content = stream.read(LINE_BYTES_MAX + 1)
        if len(content) > LINE_BYTES_MAX:
            raise InvalidFile(self.path, None, f"longer than {LINE_BYTES_MAX} bytes")
        return content

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield (1-based number, line without its end); a byte order mark is dropped.

        Of an ``.eval`` archive, a log of one sample for each sample is what stands on a line; of
        OTLP in protobuf, a message as its JSON, or as it is where it is damaged.

        Raises :class:`InvalidFile` as :meth:`open`, or when a line is too long.
        """
        with self.open() as stream:
            if stream.peek(4).startswith(MAGICS):
                yield from self._samples(stream)
                return
            if otlp_files.is_stream(stream.peek(_HEAD_BYTES)[:_HEAD_BYTES]):
                yield from self._messages(stream)
                return
            number = 0
            while line := stream.readline(LINE_BYTES_MAX):
                number += 1
                if len(line) == LINE_BYTES_MAX:
                    raise InvalidFile(self.path, number, f"longer than {LINE_BYTES_MAX} bytes")
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                yield number, line.rstrip(b"\r\n")

    def _messages(self, stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
        number = 0
        try:
            for number, message in enumerate(otlp_files.messages(stream), 1):
                yield number, message
        except InvalidEvent as error:
            raise InvalidFile(self.path, number + 1, str(error)) from error

    def _samples(self, stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
        try:
            yield from enumerate(samples(stream), 1)
        except BadArchive as error:
            raise InvalidFile(self.path, None, str(error)) from error


def expand(paths: Iterable[str | Path], stdin: BinaryIO | None = None) -> Iterator[Source]:
    """Turn what a user names into sources, in a fixed order and each file once.

    A folder gives its files of the known suffixes, folders below included and hidden ones not,
    sorted by name; a pattern gives what it matches, sorted.

    Raises
    ------
    InvalidFile
        No such file, a pattern that matches nothing, or a folder that holds nothing to read.
    """
    seen: set[str] = set()
    for path in paths:
        for found in _expanded(str(path)):
            identity = found if found == STDIN else str(Path(found).resolve())
            if identity not in seen:
                seen.add(identity)
                yield Source(found, stdin)


def _expanded(path: str) -> list[str]:
    if path == STDIN:
        return [path]
    if Path(path).is_dir():
        return _in_folder(path)
    if Path(path).exists():
        return [path]
    if not glob.has_magic(path):
        raise InvalidFile(path, None, "no such file or folder")
    matches = sorted(glob.glob(path, recursive=True))
    if not matches:
        raise InvalidFile(path, None, "no file matches this pattern")
    files = [match for match in matches if Path(match).is_file()]
    # A pattern that matches folders only means what is in them.
    return files or [found for match in matches for found in _in_folder(match)]


def _in_folder(folder: str) -> list[str]:
    found = [
        str(path)
        for path in sorted(Path(folder).rglob("*"))
        if _uncompressed_name(path.name).endswith(SUFFIXES)
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.is_file()
    ]
    if not found:
        known = ", ".join(SUFFIXES)
        raise InvalidFile(
            folder, None, f"the folder holds no file ending in {known} (.xz .gz .zst)"
        )
    return found


def _uncompressed_name(path: str) -> str:
    name = Path(path).name
    for compression in _COMPRESSIONS:
        name = name.removesuffix(compression.suffix)
    return name


def _decompressed(raw: BinaryIO, path: str) -> io.BufferedReader:
    buffered = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(_Readable(raw))
    head = buffered.peek(8)
    for compression in _COMPRESSIONS:
        if head.startswith(compression.magic) or path.endswith(compression.suffix):
            inflated = _Inflated(buffered, compression.decompressor)
            return io.BufferedReader(inflated, _BUFFER_BYTES)
    return buffered


class _Readable(io.RawIOBase):
    """A binary stream without ``peek``, such as ``io.BytesIO``, as a raw stream."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class _Inflated(io.RawIOBase):
    """Decompressed bytes; unlike the libraries' own readers, every cut is an error.

    The three libraries' incremental decompressors have ``decompress``, ``eof`` and ``unused_data``
    in common. Several compressed streams one after another are one stream.
    """

    def __init__(self, compressed: BinaryIO, decompressor: Callable[[], Any]) -> None:
        self._compressed = compressed
        self._start = decompressor
        self._decompressor = decompressor()
        self._fresh, self._began = True, False
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            chunk = self._next_chunk()
            if not chunk:
                return 0
            self._ready = memoryview(self._decompressor.decompress(chunk))
            self._fresh = False
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _next_chunk(self) -> bytes:
        rest = b""
        if self._decompressor.eof:
            rest = self._decompressor.unused_data.lstrip(b"\0")
            self._decompressor, self._fresh = self._start(), True
        chunk = rest or self._compressed.read(_CHUNK_BYTES)
        if self._fresh:
            # Padding with zero bytes between streams is allowed.
            while chunk and not chunk.strip(b"\0"):
                chunk = self._compressed.read(_CHUNK_BYTES)
        if not chunk and not (self._fresh and self._began):
            raise EOFError("the stream ends before its end marker")
        self._began = True
        return chunk
