"""Which steps of a run were seen: a digest of each, by sequence number, in little memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from rpds import HashTrieMap

DIGEST_BYTES = 8
_BLOCK = 16  # neighbours in one string of bytes: a map entry of its own costs ten times a digest
_NONE = bytes(DIGEST_BYTES)


@dataclass(frozen=True, slots=True)
class SeenSteps:
    """Digests by sequence number. Immutable; an insertion makes a new one.

    Parameters
    ----------
    blocks
        Digests of sixteen neighbours, zeros where there is none, by the first one's number / 16.
    count
        Digests there are.
    """

    blocks: HashTrieMap[int, bytes] = field(default_factory=HashTrieMap)
    count: int = 0

    def __len__(self) -> int:
        return self.count

    def get(self, seq: int) -> bytes | None:
        """Return the digest of a step, None where it was not seen."""
        block = self.blocks.get(seq // _BLOCK)
        if block is None:
            return None
        begin = seq % _BLOCK * DIGEST_BYTES
        digest = block[begin : begin + DIGEST_BYTES]
        return None if digest == _NONE else digest

    def insert(self, seq: int, digest: bytes) -> SeenSteps:
        """Return it with one more digest, of eight bytes.

        One in 2^64 is all zeros; its step would be unknown, so that it could come twice.
        """
        place = seq // _BLOCK
        block = self.blocks.get(place) or bytes(_BLOCK * DIGEST_BYTES)
        begin = seq % _BLOCK * DIGEST_BYTES
        end = begin + DIGEST_BYTES
        fresh = block[begin:end] == _NONE
        blocks = self.blocks.insert(place, block[:begin] + digest + block[end:])
        return SeenSteps(blocks, self.count + fresh)
