"""Parts: entries of a checkpoint that are larger than a message may be, cut up and put together.

The parts go first, under keys made of what they hold, and then under the entry's own key a head
that says which they are. So an entry is replaced all at once, as if it were one message: until the
head is there, the former one and its parts count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from ontrack.pipeline.folding import checkpoint
from ontrack.pipeline.folding.checkpoint import Entry

PARTS_MAX: Final = 64  # beyond it an entry would take too long to write and to read

_MAGIC: Final = b"ontrack-parts-1\n"
_DIGEST_BYTES: Final = 16
_COUNT_BYTES: Final = 2
# Before the keys of parts. No run has such a key: it never stands in UTF-8.
_PART: Final = b"\xff"


def split(entry: Entry) -> list[Entry]:
    """Return what is written in place of an entry, the one under its own key last."""
    value = entry.value
    size = checkpoint.VALUE_BYTES_MAX
    if value is None or len(value) <= size:
        return [entry]
    pieces = [value[start : start + size] for start in range(0, len(value), size)]
    digest = hashlib.blake2b(value, digest_size=_DIGEST_BYTES).digest()
    head = _MAGIC + digest + len(pieces).to_bytes(_COUNT_BYTES)
    parts = [
        replace(entry, key=key, value=piece)
        for key, piece in zip(part_keys(head), pieces, strict=True)
    ]
    return [*parts, replace(entry, value=head)]


def is_too_large(entry: Entry) -> bool:
    """Tell whether an entry would have too many parts."""
    return len(entry.value or b"") > PARTS_MAX * checkpoint.VALUE_BYTES_MAX


def is_part(key: bytes) -> bool:
    """Tell whether a key is that of a part."""
    return key.startswith(_PART)


def part_keys(head: bytes | None) -> tuple[bytes, ...]:
    """Return the keys of an entry's parts, in order; none where it was not cut up."""
    if head is None or not head.startswith(_MAGIC) or len(head) != _HEAD_BYTES:
        return ()
    rest = head[len(_MAGIC) :]
    digest, count = rest[:_DIGEST_BYTES], int.from_bytes(rest[_DIGEST_BYTES:])
    return tuple(_PART + digest + index.to_bytes(_COUNT_BYTES) for index in range(count))


def joined(latest: Mapping[bytes, Entry]) -> Iterable[Entry]:
    """Yield the latest entries, put together again; one that lacks a part has no value."""
    for key, entry in latest.items():
        if is_part(key):
            continue
        keys = part_keys(entry.value)
        if not keys:
            yield entry
            continue
        pieces = [latest[part].value for part in keys if part in latest]
        value = b"".join(piece for piece in pieces if piece is not None)
        digest = hashlib.blake2b(value, digest_size=_DIGEST_BYTES).digest()
        yield replace(entry, value=value if keys[0].startswith(_PART + digest) else None)


_HEAD_BYTES: Final = len(_MAGIC) + _DIGEST_BYTES + _COUNT_BYTES
