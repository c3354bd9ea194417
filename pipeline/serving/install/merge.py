"""Our hooks in a settings document and out of it again; whatever else is there stays as it is."""

from __future__ import annotations

import copy
import re
from typing import Any

from ontrack.pipeline.serving.install.handlers import is_ours
from ontrack.pipeline.serving.install.setups import Setup
from ontrack.topics.errors import WrongShape
from ontrack.topics.jsontext import described

Document = dict[str, Any]


def merged(document: Document, setup: Setup, handlers: dict[str, dict[str, Any]]) -> Document:
    """Return the settings with our hooks, once each, where they stood or behind the others.

    Parameters
    ----------
    handlers
        One hook an event; ours on other events are taken away.

    Raises
    ------
    WrongShape
        The part where hooks stand is not what the host documents; the message names it.
    """
    out = copy.deepcopy(document)
    if setup.versioned:
        out = out if "version" in out else {"version": 1, **out}
        if out["version"] != 1:
            raise WrongShape(f"`version`: expected 1, found {described(out['version'])}")
    table = _table(out, setup, make=True)
    found = {_spelled(table, event, setup): handler for event, handler in handlers.items()}
    for event in [*table, *(event for event in found if event not in table)]:
        handler = found.get(event)
        entries = table.get(event, [])
        if handler is None and not _well_formed(entries, setup):
            continue  # another event than ours: its form is not our matter
        kept, place = _without_ours(entries, setup, event)
        if handler is not None:
            entry = {"hooks": [handler]} if setup.shape == "grouped" else handler
            kept.insert(len(kept) if place is None else place, entry)
        if kept or place is None:
            table[event] = kept
        else:
            del table[event]
    return out


def removed(document: Document, setup: Setup) -> Document:
    """Return the settings without our hooks, and without the lists that held nothing else.

    Raises
    ------
    WrongShape
        The part where hooks stand is no object.
    """
    out = copy.deepcopy(document)
    table = _table(out, setup, make=False)
    was_ours = False
    for event in list(table):
        if not _well_formed(table[event], setup):
            continue
        kept, place = _without_ours(table[event], setup, event)
        if place is None:
            continue
        was_ours = True
        if kept:
            table[event] = kept
        else:
            del table[event]
    if was_ours and table is not out and not table:
        del out["hooks"]
    return out


def acting(document: Document) -> Document:
    """Return what a host acts on: the settings without empty lists of hooks and the version."""
    out = {name: value for name, value in document.items() if (name, value) != ("version", 1)}
    if isinstance(out.get("hooks"), dict):
        out["hooks"] = {name: value for name, value in out["hooks"].items() if value != []}
        if not out["hooks"]:
            del out["hooks"]
    return out


def _table(document: Document, setup: Setup, make: bool) -> Document:
    """Return the object with the events as names: ``hooks``, or the document itself (OpenHands)."""
    if setup.name == "openhands" and document and "hooks" not in document:
        return document
    table = document.get("hooks", {})
    if make:
        document["hooks"] = table
    if not isinstance(table, dict):
        raise WrongShape(f"`hooks`: expected an object, found {described(table)}")
    return table


def _spelled(table: Document, event: str, setup: Setup) -> str:
    """Return the event as the file spells it: OpenHands takes two spellings, but not both."""
    snake = re.sub(r"(?<!^)(?=[A-Z])", "_", event).lower()
    return snake if setup.name == "openhands" and snake in table else event


def _well_formed(entries: object, setup: Setup) -> bool:
    return isinstance(entries, list) and all(
        isinstance(entry, dict)
        and (setup.shape == "flat" or isinstance(entry.get("hooks", []), list))
        for entry in entries
    )


def _without_ours(entries: Any, setup: Setup, event: str) -> tuple[list[Any], int | None]:
    """Return what is left without our hooks, and the place of the first; None: there was none."""
    if not _well_formed(entries, setup):
        raise WrongShape(
            f"`hooks.{event}`: expected an array of objects as the host documents it, found "
            f"{described(entries)}"
        )
    kept: list[Any] = []
    place: int | None = None
    for entry in entries:
        hooks = entry.get("hooks", []) if setup.shape == "grouped" else [entry]
        others = [hook for hook in hooks if not is_ours(hook, setup)]
        if len(others) == len(hooks):
            kept.append(entry)
            continue
        if others:  # somebody put a hook into our group: it stays, with its matcher
            kept.append({**entry, "hooks": others})
        place = len(kept) if place is None else place
    return kept, place
