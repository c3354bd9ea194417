"""Compressed bytes of a message, inflated up to a limit and no further."""

from __future__ import annotations

import zlib
from typing import Any, Final

import zstandard

from ontrack.topics.errors import MessageTooLarge, WrongShape

#: Of one message, where nobody says otherwise; what is sent at once is far below it.
MESSAGE_BYTES_MAX: Final = 64 * 1_048_576

# One chunk of zstd is inflated at once: four bytes of it can be a block of 128 KiB.
_CHUNK_BYTES = 1_024

_ZLIB: Final[dict[str, int]] = {"gzip": 31, "deflate": 15}
#: How messages may be compressed, by the names of HTTP's ``Content-Encoding``.
ENCODINGS: Final = (*_ZLIB, "zstd")


def inflated(raw: bytes, encoding: str, bytes_max: int = MESSAGE_BYTES_MAX) -> bytes:
    """Inflate a message.

    Parameters
    ----------
    encoding : str
        One of ``ENCODINGS``.
    bytes_max : int
        Bytes it may have then; little more than that is ever in memory.

    Raises
    ------
    MessageTooLarge
        It has more.
    WrongShape
        It is damaged or cut short, or something follows it.
    """
    stream, is_zstd = _stream(encoding), encoding == "zstd"
    out = bytearray()
    try:
        for start in range(0, len(raw), _CHUNK_BYTES):
            if stream.eof:
                raise WrongShape(f"something follows the end of the {encoding} data")
            chunk = raw[start : start + _CHUNK_BYTES]
            room = bytes_max + 1 - len(out)
            out += stream.decompress(chunk) if is_zstd else stream.decompress(chunk, room)
            if len(out) > bytes_max or (not is_zstd and stream.unconsumed_tail):
                raise MessageTooLarge(
                    f"more than {bytes_max} bytes when inflated; send less at once"
                )
    except (zlib.error, zstandard.ZstdError) as error:
        raise WrongShape(f"the {encoding} data is damaged ({error})") from None
    if not stream.eof or stream.unused_data:
        raise WrongShape(f"the {encoding} data is cut short, or something follows it")
    return bytes(out)


def is_compressed(raw: bytes, encoding: str) -> bool:
    """Tell from its first bytes whether a message is compressed so."""
    if encoding == "deflate":
        return len(raw) > 1 and raw[0] & 0x0F == 8 and int.from_bytes(raw[:2]) % 31 == 0
    return raw.startswith(b"\x28\xb5\x2f\xfd" if encoding == "zstd" else b"\x1f\x8b")


def _stream(encoding: str) -> Any:
    if encoding == "zstd":
        return zstandard.ZstdDecompressor().decompressobj()
    return zlib.decompressobj(wbits=_ZLIB[encoding])
