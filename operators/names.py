"""Names of arguments: what they say about the values, for everybody who asks.

One table. Two questions are put to it, and they differ where a row says why:

* :func:`key_kind`: what of a call makes it another call? (repeats, costs of arguments)
* :func:`is_prose`: is this value no object that somebody could have slipped in? (the gate)
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import Final


class KeyKind(Enum):
    """What an argument's name says about its value."""

    VOLATILE = "volatile"  # new on every call, whatever the call is about
    AMBIGUOUS = "ambiguous"  # the same, unless nothing else says what the call is about
    IDENTITY = "identity"  # what the call is about
    PROSE = "prose"
    # Texts for a machine, and bounds of a search: a call with other ones may well be about the
    # same. For the gate they are objects: a command or an addressee is what an injection brings.
    COMMAND = "command"
    BOUND = "bound"
    OTHER = "other"


#: Kinds whose values do not name the call's object; what they mention may.
TEXTS: Final = (KeyKind.PROSE, KeyKind.COMMAND, KeyKind.BOUND)  # to hash an enumeration is slow

# Names without their underscores, in lower case.
_VOLATILE = re.compile(
    r"(?:tool)?callid|requestid|traceid|spanid|correlationid|idempotencykey|nonce|ts|timestamp|now"
)
_AMBIGUOUS = re.compile(r"id|uuid|guid|time")
_COMMAND = re.compile(r"code|script|source|command|cmd|action|input|pattern|regex|sql")
_BOUND = re.compile(r"date|day|start|end|from|to")
_IDENTITY = re.compile(
    r"paths?|files?|filename|filepath|dir|directory|folder|ur[li]s?|link|href|keys?|ids|email"
    r"|number|address"
)
_IDENTITY_ENDING = re.compile(
    r".*(?:_(?:ids?|paths?|files?|dir|url|uri|key|number|email)|[a-z](?:Ids?|Path|File|Url|Key))"
)
# The last word of a name; of the others above only the whole: `zip_code` is no program.
_PROSE_WORDS = (
    "body title subject reason reasons message messages content contents note notes description "
    "thought thoughts reasoning rationale comment comments summary prompt question answer text "
    "explanation feedback details query q expression"
)
_PROSE = frozenset(_PROSE_WORDS.split())
_WORD = re.compile(r"[a-z0-9]+")
_NAME: Final = 100


def key_kind(name: str) -> KeyKind:
    """Tell what an argument's name says about its value; spelling and case do not matter."""
    return _key_kind(name[-_NAME:])  # what a cache holds must not be as long as an event


def is_prose(path: str) -> bool:
    """Tell whether the last name of a path announces prose (``email_body``, ``Reason``)."""
    return _is_prose(path[-_NAME:])


@lru_cache(maxsize=4096)  # names of arguments are few
def _key_kind(name: str) -> KeyKind:
    plain = name.lower().replace("_", "").replace("-", "")
    if _VOLATILE.fullmatch(plain):
        return KeyKind.VOLATILE
    if _AMBIGUOUS.fullmatch(plain):
        return KeyKind.AMBIGUOUS
    if _is_prose(name):
        return KeyKind.PROSE
    if _COMMAND.fullmatch(plain):
        return KeyKind.COMMAND
    if _BOUND.fullmatch(plain):
        return KeyKind.BOUND
    if _IDENTITY.fullmatch(plain) or _IDENTITY_ENDING.fullmatch(name):
        return KeyKind.IDENTITY
    return KeyKind.OTHER


@lru_cache(maxsize=4096)
def _is_prose(path: str) -> bool:
    name = path.rsplit(".", 1)[-1].replace("[*]", "")
    words = _WORD.findall(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())
    return bool(words) and words[-1] in _PROSE
