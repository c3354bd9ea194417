"""Repeat ratio: how few different tools a run calls for its number of calls.

A cheap early warning. It tells no kinds of loop apart; above 0.7 it says: look at the trace.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

HASH_BYTES = 8


def step(memory: bytes, tool: str, tools_max: int) -> bytes:
    """Remember a tool's name, as a hash of 8 bytes, unless it is known or the memory is full.

    Past ``tools_max`` different tools the ratio is too high rather than the memory too large.
    """
    digest = name_hash(tool)
    if find(memory, digest) >= 0 or len(memory) >= tools_max * HASH_BYTES:
        return memory
    return memory + digest


def distinct(memory: bytes) -> int:
    """Return how many different tools were called."""
    return len(memory) // HASH_BYTES


def ratio(distinct_tools: int, calls: int) -> float:
    """Return 1 - distinct tool names / calls, in [0, 1); 0 for an empty run.

    Examples
    --------
    >>> ratio(3, 16)
    0.8125
    """
    return 1 - distinct_tools / calls if calls else 0.0


def find(memory: bytes, record: bytes) -> int:
    """Return where a record stands among records of its size, -1 if nowhere."""
    place = memory.find(record)
    while place >= 0 and place % len(record):
        place = memory.find(record, place + 1)
    return place


@lru_cache(maxsize=4096)  # names are few
def name_hash(tool: str) -> bytes:
    """Return 8 bytes that stand for a tool's name."""
    return blake2b(tool.encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES).digest()
