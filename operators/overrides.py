"""Overrides: a profile with some of its settings changed by name, as settings files have them."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ontrack.operators.profiles import Profile
from ontrack.topics.errors import InvalidSettings

#: Set elsewhere: by the choice of a profile, and by the setting of the same name.
NOT_HERE: Final = frozenset({"name", "show_arguments"})

#: Settings of the paper's gate, and what a gate that compares identities has in their place.
_IN_PLACE: Final = {"unknown_tools": "identity.undeclared", "match_cost_max": "identity.mode"}

Params = TypeVar("Params")


def override(profile: Profile, values: Mapping[str, Any], key: str = "operators") -> Profile:
    """Return the profile with the values in place of its own.

    Parameters
    ----------
    values
        By name, nested as the profile is: ``{"transport": {"solver": {"lam": 0.12}}}``. For an
        operator that can be switched off, ``False`` does so; ``True`` or a table switches it on,
        with its defaults for what the table does not name.
    key
        What messages put before each name.

    Raises
    ------
    InvalidSettings
        Naming the first key that does not exist, has the wrong type or is out of range, or that
        nothing would look at: who tightens a gate must not believe in vain that it is tight.
    """
    changed = _changed(profile, values, key, NOT_HERE)
    for name, instead in _IN_PLACE.items():
        is_set = getattr(changed.gate, name) != getattr(profile.gate, name)
        if is_set and changed.identity is not None:
            raise InvalidSettings(
                f"{key}.gate.{name}: nothing looks at it in profile {profile.name!r}, whose gate "
                f"compares identities; set {key}.{instead} instead"
            )
    return changed


def _changed(
    owner: Params, values: Mapping[str, Any], key: str, hidden: frozenset[str] = frozenset()
) -> Params:
    hints = get_type_hints(type(owner))
    known = [item.name for item in fields(owner) if item.name not in hidden]  # type: ignore[arg-type]
    changes = {}
    for name, value in values.items():
        if name not in known:
            raise InvalidSettings(f"{key}.{name}: no such setting; known: {', '.join(known)}")
        changes[name] = _value(hints[name], getattr(owner, name), value, f"{key}.{name}")
    try:
        changed: Params = replace(owner, **changes)  # type: ignore[type-var]
    except ValueError as error:
        raise InvalidSettings(f"{key}: {error}") from error
    return changed


def _value(hint: Any, now: Any, value: Any, key: str) -> Any:
    """Return one value as the setting's type has it."""
    if get_origin(hint) in (Union, types.UnionType):
        (params,) = (each for each in get_args(hint) if each is not type(None))
        if value is False or value is None:
            return None
        now = params() if now is None else now
        if value is True:
            return now
        return _changed(now, _table(value, key, " or true or false"), key)
    if is_dataclass(hint):
        return _changed(now, _table(value, key), key)
    return _plain(hint, value, key)


def _table(value: Any, key: str, more: str = "") -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidSettings(f"{key}: expected a table of settings{more}, found {value!r:.80}")
    return value


def _plain(hint: Any, value: Any, key: str) -> Any:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if get_origin(hint) is Literal:
        if value in get_args(hint):
            return value
        expected = "one of " + ", ".join(map(repr, get_args(hint)))
    elif issubclass(hint, Enum):
        names = [each.value for each in hint]
        if value in names:
            return hint(value)
        expected = "one of " + ", ".join(map(repr, names))
    elif hint is float:
        if is_number:
            return float(value)
        expected = "a number"
    elif hint is int:
        if is_number and float(value).is_integer():
            return int(value)
        expected = "a whole number"
    else:
        if isinstance(value, hint):
            return value
        expected = {bool: "true or false", str: "text"}.get(hint, hint.__name__)
    raise InvalidSettings(f"{key}: expected {expected}, found {value!r:.80}")
