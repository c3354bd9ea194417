"""Contracts of the tools that this program declares itself, in its code."""

from __future__ import annotations

import threading

from ontrack.topics.knowledge import ToolContract

_lock = threading.Lock()
_contracts: dict[str, ToolContract] = {}


def declare(contract: ToolContract) -> None:
    """Declare a tool's contract; a second one of the same name takes its place.

    Runs that begin from now on know it.
    """
    with _lock:
        _contracts[contract.name] = contract


def declared_contracts() -> tuple[ToolContract, ...]:
    """Return the contracts that were declared, by name.

    For ``EmbeddedMonitor(settings, contracts=…)``, or to be published with
    ``ontrack send --tools``: write them as a tools file, ``{"tools": […]}``.
    """
    with _lock:
        return tuple(_contracts[name] for name in sorted(_contracts))
