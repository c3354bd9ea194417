"""Redaction: values at stated places are replaced by a digest, before anything looks at them.

A rule is a path from a field of the event, in this grammar::

    path  = root *( "." part / "[" index "]" )
    root  = "args" / "result" / "error" / "action" / "reason" / "consumed" / "produced"
    part  = name / DQUOTE characters DQUOTE / "*" / "**"
    index = digits / "*"

A name is one field of an object; in an array it is looked up in every item, as contracts do. ``*``
is every field or item, ``**`` any number of levels, none included. A name that holds ``. [ ] " *``
is written as a JSON string. A text that is JSON is looked into as well. See
docs/decisions/0011-redaction-by-path.md.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterable
from enum import Enum
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from ontrack.operators.canonical import canonical_json
from ontrack.topics.codecs import encode
from ontrack.topics.errors import InvalidSettings, MalformedMessage, TooDeep
from ontrack.topics.events import ErrorInfo
from ontrack.topics.jsontext import parse
from ontrack.topics.knowledge import Reference, Task

PREFIX: Final = "redacted:"
DIGEST_CHARACTERS: Final = 12
LEVELS_MAX: Final = 256

_REDACTED = re.compile(rf"{PREFIX}[0-9a-f]{{{DIGEST_CHARACTERS}}}")
_PART = re.compile(
    r"""\.(?:(?P<deep>\*\*)|(?P<any>\*)|(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<name>[^.\[\]"*]+))
    |\[(?:(?P<all>\*)|(?P<index>\d+))\]""",
    re.VERBOSE,
)
_ROOT = re.compile(r"[a-z_]+")
_OF_PARTS = ("args", "error", "consumed", "produced")  # the field alone means all that is in it
_TEXTS = ("action", "reason")
_ROOTS = ("args", "result", "error", "action", "reason", "consumed", "produced")


class _Wild(Enum):
    ANY = "*"
    DEEP = "**"


_Part = str | _Wild
_States = tuple[tuple[_Part, ...], ...]
Redactable = TypeVar("Redactable", bound=BaseModel)  # an event, a proposal, a reference's step


class Redaction:
    """Rules of what is redacted, and the key of its digests.

    Parameters
    ----------
    paths
        Rules; none: everything stays as it is.
    key
        Makes the digests HMACs. Without one, a short secret can be found by trying.

    Raises
    ------
    InvalidSettings
        A path is not of the grammar.

    Examples
    --------
    >>> Redaction(["args.card.*"]).value("args", {"card": {"pin": 1234}, "order": "A-17"})
    {'card': {'pin': 'redacted:03ac674216f3'}, 'order': 'A-17'}
    """

    def __init__(self, paths: Iterable[str] = (), key: bytes | None = None) -> None:
        self._key = key
        rules = sorted({_parsed(path) for path in paths}, key=_plain)
        self._by_root: dict[str, _States] = {}
        for root, parts in rules:
            self._by_root[root] = (*self._by_root.get(root, ()), parts)
        self.fingerprint = self._fingerprint([_plain(rule) for rule in rules])

    def __bool__(self) -> bool:
        return bool(self._by_root)

    def event(self, event: Redactable) -> Redactable:
        """Return an event, proposal or reference's step with its redacted values replaced.

        It is itself where nothing had to be. What has been redacted stays as it is, so that doing
        it twice, in two processes, is the same as once.
        """
        changes: dict[str, Any] = {}
        for root in self._by_root:
            before = getattr(event, root, None)
            if before is None:
                continue
            if isinstance(before, ErrorInfo):
                after: Any = ErrorInfo(**self.value(root, before.model_dump()))
            elif isinstance(before, tuple):
                after = tuple(self.value(root, list(before)))
            else:
                after = self.value(root, before)
            if after is not before and after != before:
                changes[root] = after
        return event.model_copy(update=changes) if changes else event

    def plainly(self, event: Redactable) -> Redactable:
        """Redact an event that a program made: its values may be any objects.

        They become the JSON data that they would be sent as: else a rule could not see into them.
        """
        if not self:
            return event
        raw = encode(event)
        try:
            sent = type(event).model_validate_json(raw)
        except ValidationError:  # a number of more digits than this parser takes
            sent = type(event).model_validate(parse(raw).value)
        return self.event(sent)

    def reference(self, reference: Reference) -> Reference:
        """Return a reference with its steps redacted as a run's are."""
        if not self:
            return reference
        return reference.model_copy(update={"steps": tuple(map(self.event, reference.steps))})

    def task(self, task: Task) -> Task:
        """Return a task with its written references redacted."""
        if not self:
            return task
        written = tuple(tuple(map(self.event, steps)) for steps in task.references)
        return task.model_copy(update={"references": written})

    def value(self, root: str, value: Any) -> Any:
        """Return the value of one field, redacted; the very same object where nothing had to be."""
        return self._walk(value, self._by_root.get(root, ()), 0)

    def digest(self, value: Any) -> str:
        """Return what stands in a value's place; equal JSON values have equal ones."""
        if isinstance(value, str) and _REDACTED.fullmatch(value):
            return value
        text = canonical_json(value)
        if self._key is None:
            found = hashlib.sha256(text).hexdigest()
        else:
            found = hmac.new(self._key, text, "sha256").hexdigest()
        return PREFIX + found[:DIGEST_CHARACTERS]

    def _walk(self, value: Any, states: _States, level: int) -> Any:
        if not states or value is None:
            return value
        states = _without_levels(states)
        if () in states:
            return self.digest(value)
        if isinstance(value, str):
            return self._text(value, states, level)
        if not isinstance(value, dict | list):
            return value
        if level >= LEVELS_MAX:
            return self.digest(value)  # too deep to look through: better too much than too little
        if isinstance(value, dict):
            fields = {
                name: self._walk(child, _after(states, str(name)), level + 1)
                for name, child in value.items()
            }
            return fields if any(fields[name] is not value[name] for name in fields) else value
        inside = tuple(s for s in states if isinstance(s[0], str) and not s[0].isdigit())
        items = [
            self._walk(child, (*_after(states, str(index)), *inside), level + 1)
            for index, child in enumerate(value)
        ]
        return items if any(a is not b for a, b in zip(items, value, strict=True)) else value

    def _text(self, text: str, states: _States, level: int) -> str:
        """Look into a text that is JSON: tools like to return it so."""
        if text.lstrip()[:1] not in ("{", "[", '"') or not text.lstrip():
            return text
        if level >= LEVELS_MAX:
            return self.digest(text)
        try:
            data = parse(text.encode("utf-8", "surrogatepass")).value
        except MalformedMessage:
            return text  # it only begins like JSON
        except TooDeep:
            return self.digest(text)
        redacted = self._walk(data, states, level + 1)
        return text if redacted is data else canonical_json(redacted).decode()

    def _fingerprint(self, rules: list[list[str]]) -> str:
        """Return what the settings' digest takes in of this; empty without rules."""
        if not rules:
            return ""
        # Of the key only this can be told, and no more than a redacted value tells.
        key = "" if self._key is None else hmac.new(self._key, b"key", "sha256").hexdigest()
        return hashlib.sha256(canonical_json([rules, key])).hexdigest()[:DIGEST_CHARACTERS]


def _parsed(path: str) -> tuple[str, tuple[_Part, ...]]:
    """Read one rule: a root and the parts that follow."""
    begin = _ROOT.match(path)
    root = begin.group() if begin else ""
    if root not in _ROOTS:
        raise _bad(path, f"it begins with none of {', '.join(_ROOTS)}")
    parts: list[_Part] = []
    position = len(root)
    while position < len(path):
        found = _PART.match(path, position)
        if found is None:
            raise _bad(path, f"{path[position : position + 20]!r} cannot be read")
        parts.append(_part(path, found))
        position = found.end()
    if parts and root in _TEXTS:
        raise _bad(path, f"{root} is a text; name it alone")
    if parts and parts[-1] is _Wild.DEEP:
        raise _bad(path, "nothing follows **; for all below a place write .* after it")
    if not parts and root in _OF_PARTS:
        parts.append(_Wild.ANY)
    return root, tuple(parts)


def _part(path: str, found: re.Match[str]) -> _Part:
    if found["deep"]:
        return _Wild.DEEP
    if found["any"] or found["all"]:
        return _Wild.ANY
    if found["quoted"] is None:
        return found["name"] or str(int(found["index"]))
    try:
        return str(json.loads(found["quoted"]))
    except ValueError as error:
        raise _bad(path, f"{found['quoted']} is no JSON string") from error


def _bad(path: str, problem: str) -> InvalidSettings:
    return InvalidSettings(
        f"the path {path[:80]!r}: {problem}; expected a field of the event and what follows in it, "
        'such as args.password, args.card.*, result.**.ssn or result.items[0]."a.b"'
    )


def _plain(rule: tuple[str, tuple[_Part, ...]]) -> list[str]:
    """Write a rule down so that a name cannot be taken for a wildcard."""
    root, parts = rule
    return [root, *(part.value if isinstance(part, _Wild) else f"={part}" for part in parts)]


def _without_levels(states: _States) -> _States:
    """Add what is left of a rule if its ``**`` stands for no level."""
    found = list(states)
    for state in found:
        if state and state[0] is _Wild.DEEP and state[1:] not in found:
            found.append(state[1:])
    return tuple(found)


def _after(states: _States, name: str) -> _States:
    """Return what is left of the rules one level below."""
    found: list[tuple[_Part, ...]] = []
    for state in states:
        if state[0] is _Wild.DEEP:
            found.append(state)
        elif state[0] is _Wild.ANY or state[0] == name:
            found.append(state[1:])
    return tuple(found)
