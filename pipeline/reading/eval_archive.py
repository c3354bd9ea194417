"""Inspect's ``.eval`` archives: a zip file with a log's header and a file for each sample."""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final

import zstandard

from ontrack.topics.errors import InvalidEvent
from ontrack.topics.jsontext import parse

MAGIC: Final = b"PK\x03\x04"
#: How an archive begins, one that holds nothing included.
MAGICS: Final = (MAGIC, b"PK\x05\x06")

#: Of one file in the archive, inflated.
SAMPLE_BYTES_MAX: Final = 512 * 1_048_576
#: No log shrinks to less than this part of its size; checked where it is over ``RATIO_FROM``.
RATIO_MAX: Final = 1_000
RATIO_FROM: Final = 64 * 1_048_576
_HEADER_BYTES_MAX: Final = 64 * 1_048_576

_DAMAGE = (zipfile.BadZipFile, struct.error, EOFError, RuntimeError, ValueError, OverflowError)

_CHUNK_BYTES = 65_536
_ZSTANDARD = 93
_LOCAL_HEADER_BYTES = 30
#: The header of a finished log, and of one that was not finished.
_HEADERS = ("header.json", "_journal/start.json")
#: What runs need of the header.
_KEPT = ("task", "model", "eval_id", "run_id")


class BadArchive(Exception):
    """The archive is damaged, no log, or not what it claims to be."""


def samples(stream: BinaryIO) -> Iterator[bytes]:
    """Yield a log of one sample, as JSON, for each sample of an archive, by name.

    One sample is in memory at a time. No file is inflated beyond ``SAMPLE_BYTES_MAX`` or what the
    archive's directory says of it, files must not overlap, and a file that grows more than a
    thousandfold is refused.

    Raises
    ------
    BadArchive
        Saying what is wrong, and with which file of the archive.
    """
    if not stream.seekable():
        raise BadArchive("an archive cannot be read from a pipe; save it to a file")
    try:
        with zipfile.ZipFile(stream) as archive:
            found = {info.filename: info for info in archive.infolist()}
            _check(stream, archive.infolist())
            header = _header(stream, found)
            names = [n for n in found if n.startswith("samples/") and n.endswith(".json")]
            if not names:
                raise BadArchive("the log holds no samples")
            for name in sorted(names, key=lambda name: (len(name), name)):
                yield header + _inflated(stream, found[name], SAMPLE_BYTES_MAX) + b"]}"
    except _DAMAGE as error:
        raise BadArchive(f"the archive is damaged or cut short ({error})") from error


def _header(stream: BinaryIO, found: dict[str, zipfile.ZipInfo]) -> bytes:
    name = next((name for name in _HEADERS if name in found), None)
    if name is None:
        raise BadArchive("a zip archive, but no Inspect log: it holds no header.json")
    try:
        header: Any = parse(_inflated(stream, found[name], _HEADER_BYTES_MAX)).value
    except InvalidEvent as error:
        raise BadArchive(f"{name}: {error}") from error
    evaluation = header.get("eval") if isinstance(header, dict) else None
    if not isinstance(evaluation, dict) or "task" not in evaluation:
        raise BadArchive(f"{name}: expected an Inspect log's `eval` with a `task`")
    kept = {name: evaluation.get(name) for name in _KEPT}
    return b'{"eval":' + json.dumps(kept).encode() + b',"samples":['


def _check(stream: BinaryIO, files: list[zipfile.ZipInfo]) -> None:
    end = stream.seek(0, 2)
    if sum(info.compress_size for info in files) > end:
        raise BadArchive("its files overlap: the archive claims to hold more than it is long")
    for info in files:
        if info.flag_bits & 1:
            raise BadArchive(f"{info.filename}: is encrypted")
        if info.file_size > RATIO_FROM and info.file_size > RATIO_MAX * info.compress_size:
            raise BadArchive(
                f"{info.filename}: {info.file_size} bytes out of {info.compress_size}: "
                f"more than {RATIO_MAX} times as long"
            )


def _inflated(stream: BinaryIO, info: zipfile.ZipInfo, limit: int) -> bytes:
    if info.file_size > limit:
        raise BadArchive(f"{info.filename}: {info.file_size} bytes, the limit is {limit}")
    stream.seek(info.header_offset)
    local = stream.read(_LOCAL_HEADER_BYTES)
    if len(local) < _LOCAL_HEADER_BYTES or local[:4] != MAGIC:
        raise BadArchive(f"{info.filename}: is not where the archive's directory says")
    name, extra = int.from_bytes(local[26:28], "little"), int.from_bytes(local[28:30], "little")
    stream.seek(name + extra, 1)
    content = bytearray()
    try:
        for piece in _pieces(stream, info):
            content += piece
            if len(content) > info.file_size:
                raise BadArchive(f"{info.filename}: longer than the archive's directory says")
    except (zlib.error, zstandard.ZstdError) as error:
        raise BadArchive(f"{info.filename}: is damaged ({error})") from error
    if len(content) < info.file_size or zlib.crc32(content) != info.CRC:
        raise BadArchive(f"{info.filename}: is damaged or cut short")
    return bytes(content)


def _pieces(stream: BinaryIO, info: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield the content piece by piece: no piece is longer than a chunk times its ratio.

    Written here because the standard library of Python 3.11 does not know Zstandard in zip files,
    which is what Inspect writes.
    """
    if info.compress_type == zipfile.ZIP_STORED:
        inflate: Callable[[bytes], bytes] = bytes
    elif info.compress_type == zipfile.ZIP_DEFLATED:
        inflate = zlib.decompressobj(-15).decompress
    elif info.compress_type == _ZSTANDARD:
        inflate = zstandard.ZstdDecompressor().decompressobj().decompress
    else:
        raise BadArchive(f"{info.filename}: unknown compression {info.compress_type}")
    left = info.compress_size
    # Small, since one chunk is inflated at once.
    size = _CHUNK_BYTES if info.compress_type == zipfile.ZIP_STORED else 2_048
    while left > 0:
        chunk = stream.read(min(size, left))
        if not chunk:
            return
        left -= len(chunk)
        yield inflate(chunk)
