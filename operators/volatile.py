"""What of a call and its result is volatile: written down without it, repeats become equal.

A clock, a nonce or the time something took says nothing about progress. Everything here is exact
text work on bytes: linear in their number, bounded by a limit, and masking twice changes nothing.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ontrack.operators.canonical import canonical_json
from ontrack.operators.names import TEXTS, KeyKind, key_kind
from ontrack.topics.events import ErrorInfo

#: Stands where something volatile was. No pattern below matches it or starts or ends beside it,
#: which makes masking idempotent.
MARK = b"\x1a"


_IS_VOLATILE, _IS_AMBIGUOUS, _IS_IDENTITY = KeyKind.VOLATILE, KeyKind.AMBIGUOUS, KeyKind.IDENTITY

# Every pattern begins with one character or class, which the engine searches at memory speed; the
# look-behind that belongs before it stands after it. Repeats are bounded or possessive.
_CLOCK = re.compile(
    rb"[0-9](?<![\w\x1a][0-9])"
    rb"(?:[0-9]{3}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2})?|[0-9]?:[0-9]{2}:[0-9]{2})"
    rb"(?:[.,][0-9]{1,9})?(?:Z|[+-][0-9]{2}:?[0-9]{2})?(?![\w\x1a])"
)
# Seconds from 2014 to 2033, or the same in milli-, micro- or nanoseconds.
_EPOCH = re.compile(rb"1(?<![\w\x1a]1)[4-9][0-9]{8}(?:[0-9]{3}){0,3}(?:\.[0-9]{1,9})?(?![\w\x1a])")
_UUID = re.compile(
    rb"[0-9a-fA-F](?<![\w\x1a].)[0-9a-fA-F]{7}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![\w\x1a])",
    re.DOTALL,
)
_ADDRESS = re.compile(rb"0(?<![\w\x1a]0)x[0-9a-fA-F]{4,16}(?![\w\x1a])")
_DURATION = re.compile(
    rb"[0-9](?<![\w\x1a][0-9])(?:[0-9]*+(?:\.[0-9]++)?+ ?ms"
    rb"|[0-9]*+\.[0-9]++ ?(?:s|secs?|seconds))(?![\w\x1a])"
)
_NAMED = (rb"time", rb"pid", rb"elapsed", rb"took")
_ASSIGNED = re.compile(
    rb"=(?<=[edk]=)(?:"
    + rb"|".join(rb"(?<=%b=)(?<![\w\x1a]%b=)" % (name, name) for name in _NAMED)
    + rb")(?:\"[^\"\\]*+\"|[^\s,;)\]}\"'\x1a\\]++)"
)
# Fields of a result that only say when, by whom or how fast it was answered. Names are grouped by
# their first letters, which is twice as fast as a list of them.
_FIELD = re.compile(
    rb"\"(?:r(?:equest_?[iI]d)|t(?:s|imestamp|race_?[iI]d|ool_call_id|ook_ms)|s(?:pan_?[iI]d)"
    rb"|c(?:all_?[iI]d)|n(?:once)|u(?:uid)|e(?:lapsed(?:_m?s)?)|d(?:uration_ms)"
    rb"|l(?:atency(?:_ms)?))\":\s*+(?:\"(?:[^\"\\]|\\.)*+\"|[^\s,}\]\"\x1a\\]++)",
    re.DOTALL,
)

_DIGITS_ALIKE = bytes.maketrans(b"123456789", b"000000000")
_HEX_ALIKE = bytes.maketrans(b"123456789abcdefABCDEF", b"0" * 21)


def mask(text: bytes) -> bytes:
    r"""Return UTF-8 text with its volatile parts replaced by :data:`MARK`.

    Volatile are fields and ``name=value`` pairs whose name says so, ISO times and ``h:m:s``,
    epochs, UUIDs, ``0x`` addresses and durations (``12 ms``, ``0.31s``); dates stay. Most patterns
    are tried only where a scan at memory speed finds their shape.

    Examples
    --------
    >>> mask(b"2 passed in 0.31s at 2026-01-01T10:00:00Z")
    b'2 passed in \x1a at \x1a'
    """
    if b'":' in text:
        text = _FIELD.sub(MARK, text)
    return _mask_values(text)


def _mask_values(text: bytes) -> bytes:
    """Mask what is volatile by its looks or by ``name=`` before it."""
    if b"=" in text:
        text = _ASSIGNED.sub(b"=" + MARK, text)
    shape = text.translate(_DIGITS_ALIKE)
    if b"0" not in shape:
        return text
    if b"0:00" in shape and (b"0:00:00" in shape or b"-00T00:00" in shape or b"-00 00:00" in shape):
        text = _CLOCK.sub(MARK, text)
    if b"0000000000" in shape:
        text = _EPOCH.sub(MARK, text)
    if text.count(b"-") >= 4 and b"-0000-0000-" in text.translate(_HEX_ALIKE):
        text = _UUID.sub(MARK, text)
    if b"0x" in text:
        text = _ADDRESS.sub(MARK, text)
    if (b"ms" in text and (b"0ms" in shape or b"0 ms" in shape)) or (
        b"0.0" in shape and (b"0s" in shape or b"0 s" in shape)
    ):
        text = _DURATION.sub(MARK, text)
    return text


def canonical_arguments(
    args: dict[str, Any],
    characters_max: int,
    identity: tuple[str, ...] | None = None,
    *,
    masked: bool = True,
) -> bytes:
    """Return arguments as bytes that are equal for calls that ask for the same.

    Keys sorted, white space folded, 3.0 as 3, volatile arguments dropped, volatile parts of the
    others masked. What the call is about is never masked or dropped: the arguments that
    ``identity`` names or, without it, those named like ids and paths; ``id``, ``uuid`` and
    ``time`` are dropped only where such another argument is there. Not ``masked``: values stay as
    they are, so that a search for another hour is another search.
    """
    plain, exact = _written_arguments(args, characters_max, identity)
    return _masked_arguments(plain, exact, characters_max) if masked else plain


class Written(NamedTuple):
    """A step written down so that repeats become equal.

    Parameters
    ----------
    asked, arguments
        :func:`canonical_arguments`, masked and not.
    result
        :func:`canonical_result`.
    """

    asked: bytes
    arguments: bytes
    result: bytes


def write_down(
    args: dict[str, Any],
    result: Any,
    error: ErrorInfo | None,
    characters_max: int,
    identity: tuple[str, ...] | None = None,
) -> Written:
    """Return all there is to compare of a step, once for everybody who looks at it."""
    plain, exact = _written_arguments(args, characters_max, identity)
    return Written(
        _masked_arguments(plain, exact, characters_max),
        plain,
        canonical_result(result, error, characters_max),
    )


def _written_arguments(
    args: dict[str, Any], characters_max: int, identity: tuple[str, ...] | None
) -> tuple[bytes, dict[str, Any]]:
    """Return arguments as they are, without the volatile ones, and those never to be masked."""
    kept: dict[str, Any] = {}
    ambiguous: dict[str, Any] = {}
    exact: dict[str, Any] = {}
    declared = None if identity is None else _names_of(identity)
    for name, value in args.items():
        kind = key_kind(name)
        if kind is _IS_IDENTITY if declared is None else name in declared:
            exact[name] = kept[name] = _tidy(value)
        elif kind is _IS_AMBIGUOUS:
            ambiguous[name] = _tidy(value)
        elif kind is not _IS_VOLATILE:
            kept[name] = _tidy(value)
    if ambiguous and not exact:
        exact = ambiguous
        kept.update(ambiguous)
    return _cut(canonical_json(kept), characters_max), exact


def _masked_arguments(plain: bytes, exact: dict[str, Any], characters_max: int) -> bytes:
    hidden = _mask_values(plain)
    if exact and hidden != plain:
        return hidden + _cut(canonical_json(exact), characters_max)
    return hidden


def identity_of(
    args: dict[str, Any], characters_max: int, identity: tuple[str, ...] | None = None
) -> bytes:
    """Return what a call is about (ids, paths, names), empty where its arguments do not say.

    The arguments that ``identity`` names or, without it, those named like ids and paths; else
    short values that are no free text, number or truth value, and paths inside of commands; there
    whatever :func:`mask` takes out counts as well, since it might be the object after all.
    """
    declared = None if identity is None else _names_of(identity)
    named = {
        name: value
        for name, value in args.items()
        if (key_kind(name) is _IS_IDENTITY if declared is None else name in declared)
    }
    if not named:
        named = {name: value for name, value in args.items() if key_kind(name) is _IS_AMBIGUOUS}
    if not named:
        named = {name: found for name, value in args.items() if (found := _object_in(name, value))}
        plain = _cut(canonical_json(_tidy(args)), characters_max)
        if _mask_values(plain) != plain:
            return plain
    return _cut(canonical_json(named), characters_max) if named else b""


def canonical_result(result: Any, error: ErrorInfo | None, characters_max: int) -> bytes:
    """Return what came back as bytes that are equal where nothing new was said.

    Text as it is, anything else as JSON with sorted keys; of more than ``characters_max`` bytes
    the first and the last half of as many, since what grows does so at its end.
    """
    if type(result) is str:
        half = characters_max // 2
        if len(result) > 2 * half:
            result = result[:half] + result[-half:]
        plain = _cut(result.encode("utf-8", "replace"), characters_max)
    elif result is None:
        plain = b""
    else:
        plain = _cut(canonical_json(result), characters_max)
    if error is not None:
        told = f"\n{error.type or ''}: {error.message or ''}"
        plain += _cut(told.encode("utf-8", "replace"), characters_max)
    return mask(plain)


def _names_of(identity: tuple[str, ...]) -> frozenset[str]:
    """Return the arguments that paths start at: ``args.order.id`` and ``order.id`` mean order."""
    return frozenset(
        path.removeprefix("args.").partition(".")[0].partition("[")[0] for path in identity
    )


def _object_in(name: str, value: Any) -> str:
    """Return what a value that is not named like an id says about the call's object."""
    if type(value) is not str:
        return ""
    kind = key_kind(name)
    if kind in TEXTS:
        return " ".join([word for word in value[:4096].split() if "/" in word or "@" in word])
    return value if len(value) <= 80 and kind is KeyKind.OTHER else ""


def _tidy(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        return " ".join(value.split())
    if kind is float:
        return int(value) if value.is_integer() and abs(value) <= 2**53 else value
    if kind is dict:
        return {
            name: _tidy(child)
            for name, child in value.items()
            if key_kind(name) is not _IS_VOLATILE
        }
    if kind is list:
        return [_tidy(child) for child in value]
    return value


def _cut(text: bytes, characters_max: int) -> bytes:
    if len(text) <= characters_max:
        return text
    half = characters_max // 2
    return text[:half] + text[len(text) - half :]
