"""Whether a changed JSON Schema breaks a program that was written for the old one.

Schemas here are what our models give: 2020-12 with ``$ref``, ``anyOf`` and ``oneOf``, objects with
named fields or as maps, arrays, tuples, enumerations and limits. A keyword that is not known here
must not change.

The question is one of containment: all that one side sends must be valid for the other. Fields
that a schema does not name count as not sent, although they are allowed: else every added field
would be a break. (That, and that it answers yes or no without naming what broke, is why the
package jsonsubschema does not serve, which can read these schemas.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ontrack.topics.errors import UnknownName

#: ``read``: we read with the new schema what others write by the old one. ``write``: the reverse.
Direction = Literal["read", "write"]

Schema = dict[str, Any]

_LOWER: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_NEVER_NEGATIVE: Final = ("minLength", "minItems", "minProperties")
_UPPER: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_EQUAL_OR_GONE: Final = ("pattern", "format", "multipleOf", "uniqueItems", "propertyNames")
_HANDLED: Final = frozenset(
    {"$ref", "anyOf", "oneOf", "type", "enum", "const", "properties", "required"}
    | {"additionalProperties", "items", "prefixItems", *_LOWER, *_UPPER, *_EQUAL_OR_GONE}
)
# They say nothing about what is valid.
_NOTES: Final = frozenset(
    {"$schema", "$id", "$defs", "title", "description", "default", "examples", "deprecated"}
    | {"discriminator", "$comment", "readOnly", "writeOnly"}
)


def breaks(old: Schema, new: Schema, direction: Direction) -> list[str]:
    """Name every change that breaks somebody.

    Parameters
    ----------
    old, new : dict
        Whole JSON Schemas, each with its own ``$defs``.
    direction : {"read", "write"}
        ``read``: every value that the old schema describes must be readable by the new one.
        ``write``: every value that the new one describes must be readable by the old one. A field
        that is gone is a break either way: what it said is lost.

    Returns
    -------
    list of str
        One sentence a break, beginning with the place: ``$.args.id: …``. Empty where there is none.
    """
    if direction not in ("read", "write"):
        raise UnknownName(f"direction {direction!r}: expected read or write")
    comparison = _Comparison(old, new, direction)
    sent, read = (old, new) if direction == "read" else (new, old)
    return list(dict.fromkeys(comparison.contained(sent, read, "$")))


@dataclass
class _Comparison:
    """One comparison: who sends by which schema, who reads by which."""

    old: Schema
    new: Schema
    direction: Direction
    _open: set[tuple[int, int]] = field(default_factory=set)

    def contained(self, sent: Any, read: Any, path: str) -> list[str]:
        """Name what makes a value of ``sent`` invalid for ``read``."""
        sender, reader = self._root(sent=True), self._root(sent=False)
        pair = (id(sent), id(read))
        if pair in self._open:
            return []  # being compared further up: nothing new can come of it
        self._open.add(pair)
        try:
            choices = list(_choices(read, reader))
            found: list[str] = []
            for choice in _choices(sent, sender):
                found += self._best(choice, choices, path)
            return found
        finally:
            self._open.discard(pair)

    def _root(self, *, sent: bool) -> Schema:
        return self.old if sent == (self.direction == "read") else self.new

    def _best(self, sent: Schema, choices: list[Schema], path: str) -> list[str]:
        """Compare with the alternative that is meant: the one of the same tag, else the nearest."""
        tagged = [choice for choice in choices if _tag(choice) == _tag(sent) is not None]
        alike = [choice for choice in choices if _kind(choice) == _kind(sent)]
        results = [self._one(sent, choice, path) for choice in tagged or choices]
        nearest = min(results, key=len, default=[])
        if not nearest and results:
            return []
        if not tagged and not alike:
            wanted = " or ".join(dict.fromkeys(_kind(choice) for choice in choices)) or "nothing"
            return [f"{path}: {self._was(_kind(sent), wanted, 'type')}"]
        meant = [self._one(sent, choice, path) for choice in tagged or alike]
        return min(meant, key=len)

    def _one(self, sent: Schema, read: Schema, path: str) -> list[str]:
        if not read.keys() - _NOTES:
            return []
        kinds = (_kind(sent), _kind(read))
        if kinds[0] != kinds[1] and kinds != ("integer", "number") and "type" in read:
            return [f"{path}: {self._was(*kinds, 'type')}"]
        return [
            *self._values(sent, read, path),
            *self._limits(sent, read, path),
            *self._fields(sent, read, path),
            *self._items(sent, read, path),
            *self._unknown(sent, read, path),
        ]

    def _values(self, sent: Schema, read: Schema, path: str) -> Iterator[str]:
        written, wanted = _enumerated(sent), _enumerated(read)
        if wanted is None:
            return
        if written is None:
            yield f"{path}: any value could be sent, only {_listed(wanted)} can be read"
            return
        missing = [value for value in written if not any(_same(value, one) for one in wanted)]
        if missing:
            done = "removed" if self.direction == "read" else "added"
            yield f"{path}: enum value {_listed(missing)} was {done}"

    def _limits(self, sent: Schema, read: Schema, path: str) -> Iterator[str]:
        for name in (*_LOWER, *_UPPER):
            limit, own = read.get(name), sent.get(name)
            if limit is None or (limit == 0 and name in _NEVER_NEGATIVE):
                continue
            is_tighter = own is None or (own < limit if name in _LOWER else own > limit)
            if is_tighter:
                yield f"{path}: {self._was(own, limit, name)}"
        for name in _EQUAL_OR_GONE:
            own, wanted = self._spelt(sent, name, sent=True), self._spelt(read, name, sent=False)
            if wanted is not None and wanted is not False and not _same(own, wanted):
                yield f"{path}: {self._was(own, wanted, name)}"

    def _fields(self, sent: Schema, read: Schema, path: str) -> Iterator[str]:
        own, wanted = sent.get("properties", {}), read.get("properties", {})
        for name in read.get("required", ()):
            if name not in sent.get("required", ()):
                done = "made required" if self.direction == "read" else "no longer always there"
                yield f"{path}.{name}: the field is {done}"
        before, now = (own, wanted) if self.direction == "read" else (wanted, own)
        map_now = (read if self.direction == "read" else sent).get("additionalProperties")
        for name in before.keys() - now.keys():
            if not isinstance(map_now, dict):
                yield f"{path}.{name}: the field was removed"
        for name in own.keys() & wanted.keys():
            yield from self.contained(own[name], wanted[name], f"{path}.{name}")
        yield from self._others(sent, read, path)

    def _others(self, sent: Schema, read: Schema, path: str) -> Iterator[str]:
        """Compare what fields without a name of their own may be."""
        own, wanted = sent.get("properties", {}), read.get("properties", {})
        rest = read.get("additionalProperties", True)
        rest = {} if rest is True else rest
        others = sent.get("additionalProperties", not own)
        others = {} if others is True else others
        if rest is False:
            if sent.get("additionalProperties") is not False:
                yield f"{path}: fields without a name in the schema are refused now"
            for name in own.keys() - wanted.keys():
                yield f"{path}.{name}: the field is sent and refused"
            return
        for name in own.keys() - wanted.keys():
            yield from self.contained(own[name], rest, f"{path}.{name}")
        if others is not False:
            for name in wanted.keys() - own.keys():
                yield from self.contained(others, wanted[name], f"{path}.{name}")
            yield from self.contained(others, rest, f"{path}.*")

    def _items(self, sent: Schema, read: Schema, path: str) -> Iterator[str]:
        own, wanted = sent.get("prefixItems", []), read.get("prefixItems", [])
        longest = max(len(own), len(wanted))
        for place in range(longest):
            mine = own[place] if place < len(own) else sent.get("items", {})
            theirs = wanted[place] if place < len(wanted) else read.get("items", {})
            yield from self.contained(mine, theirs, f"{path}[{place}]")
        is_open = sent.get("maxItems") is None or sent["maxItems"] > longest
        if is_open and ("items" in read or "items" in sent):
            yield from self.contained(sent.get("items", {}), read.get("items", {}), f"{path}[*]")

    def _unknown(self, sent: Schema, read: Schema, path: str) -> Iterator[str]:
        # A union is left over here only where it stood beside another one.
        known = _HANDLED - {"anyOf", "oneOf"} | _NOTES
        for name in sorted((sent.keys() | read.keys()) - known):
            if not _same(self._spelt(sent, name, sent=True), self._spelt(read, name, sent=False)):
                yield f"{path}: keyword {name} has changed, which cannot be judged here"

    def _spelt(self, schema: Schema, name: str, *, sent: bool) -> Any:
        """Return a keyword's value with what its references stand for in their place."""
        return _inlined(schema.get(name), self._root(sent=sent), ())

    def _was(self, sent: object, read: object, what: str) -> str:
        old, new = (sent, read) if self.direction == "read" else (read, sent)
        return f"{what} was {_shown(old)}, is {_shown(new)}"


def _choices(schema: Any, root: Schema) -> Iterator[Schema]:
    """Give the alternatives of a schema, each without references and unions at its top."""
    if schema is False:
        return
    node: Schema = {} if schema is True else schema
    if "$ref" in node:
        beside = {name: value for name, value in node.items() if name != "$ref"}
        yield from _choices(_resolved(node["$ref"], root) | beside, root)
        return
    for union in ("anyOf", "oneOf"):
        if union in node:
            beside = {name: value for name, value in node.items() if name != union}
            for child in node[union]:
                for choice in _choices(child, root):
                    yield beside | choice
            return
    if isinstance(node.get("type"), list):
        for kind in node["type"]:
            yield node | {"type": kind}
        return
    yield node


def _resolved(reference: str, root: Schema) -> Schema:
    node: Any = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        node = node[part] if part else node
    found: Schema = node
    return found


def _inlined(node: Any, root: Schema, within: tuple[str, ...]) -> Any:
    """Put definitions in the place of references; one inside of itself stays a reference."""
    if isinstance(node, list):
        return [_inlined(item, root, within) for item in node]
    if not isinstance(node, dict):
        return node
    reference = node.get("$ref")
    if isinstance(reference, str) and reference not in within:
        beside = {name: value for name, value in node.items() if name != "$ref"}
        found = _resolved(reference, root) | beside
        return _inlined(found, root, (*within, reference))
    return {
        name: _inlined(child, root, within) for name, child in node.items() if name not in _NOTES
    }


def _same(one: Any, other: Any) -> bool:
    """Tell whether two values are the same JSON: ``1`` is not ``true``, as it is to Python."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _tag(schema: Schema) -> object:
    """Return what tells an alternative from the others: its constant ``type``."""
    kind = schema.get("properties", {}).get("type")
    return kind.get("const") if isinstance(kind, dict) else None


def _kind(schema: Schema) -> str:
    if "type" in schema:
        return str(schema["type"])
    values = _enumerated(schema)
    if values and all(isinstance(value, str) for value in values):
        return "string"
    return "anything"


def _enumerated(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return schema.get("enum")


def _listed(values: list[Any]) -> str:
    return ", ".join(map(repr, values))


def _shown(value: object) -> str:
    return "free" if value is None else str(value)
