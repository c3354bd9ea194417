"""Tries: how often somebody may guess the token."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

WRONG_TOKEN_S = 1.0  # a wrong one costs whoever guesses this long
WAITING_MAX: Final = 4  # tries of one client behind the one that is being looked at
ALL_MAX: Final = 64  # of all clients together
_IPV6_BITS: Final = 64  # of an address: what one customer of a provider is given


class TooManyTries(Exception):
    """There are too many tries at once: this one was not looked at."""


@dataclass(slots=True)
class _Client:
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    tries: int = 0


class Tries:
    """Looks at tokens: those of one client one after another, a wrong one for a second.

    A right one waits behind the wrong ones of its client as well: answered at once it would tell
    whoever sends many together which of them it was. Without wrong ones nobody waits.

    Parameters
    ----------
    is_right
        Tells whether a text is the token.
    """

    def __init__(self, is_right: Callable[[str], bool]) -> None:
        self._is_right = is_right
        self._clients: dict[str, _Client] = {}
        self._all = 0

    async def look(self, address: str, given: str) -> bool:
        """Tell whether a text is the token, once it is its turn.

        Parameters
        ----------
        address
            Where it comes from: addresses that one client can have many of count as one.

        Raises
        ------
        TooManyTries
            Others of the client, or of all clients, are waiting already.
        """
        name = _network(address)
        client = self._clients.setdefault(name, _Client())
        if client.tries > WAITING_MAX or self._all >= ALL_MAX:
            if not client.tries:
                del self._clients[name]
            raise TooManyTries
        client.tries += 1
        self._all += 1
        try:
            async with client.turn:
                if self._is_right(given):
                    return True
                await asyncio.sleep(WRONG_TOKEN_S)
                return False
        finally:
            client.tries -= 1
            self._all -= 1
            if not client.tries:
                del self._clients[name]


def _network(address: str) -> str:
    """Return an address, of IPv6 the network that its owner can choose addresses in."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, _IPV6_BITS), strict=False))
